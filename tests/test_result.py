"""What workflows return."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastcaps._result import Result, Table, plain


@dataclass(frozen=True, repr=False)
class Sample(Result):
    name: str
    values: np.ndarray
    path: Path
    nothing: float = float("nan")

    def tables(self) -> list[Table]:
        return [Table(self.name, ["row", "value"], [[str(k), f"{v:.1f}"] for k, v in enumerate(self.values)])]


SAMPLE = Sample("<b>[red]x[/red]</b>", np.array([1.0, 22.0]), Path("a/b"))


def test_becomes_plain_values() -> None:
    assert SAMPLE.to_dict() == {"name": SAMPLE.name, "values": [1.0, 22.0], "path": "a/b", "nothing": None}
    assert plain({1: (np.int64(3), range(2)), "s": [SAMPLE]}) == {"1": [3, [0, 1]], "s": [SAMPLE.to_dict()]}


def test_shows_itself_as_a_table() -> None:
    lines = repr(SAMPLE).splitlines()
    assert lines[0].strip() == "<b>[red]x[/red]</b>", "markup is text"
    assert [line for line in lines if "22.0" in line]


def test_shows_its_sentences_below_the_tables() -> None:
    class Spoken(Sample):
        def sentences(self) -> list[str]:
            return ["a < b"]

    spoken = Spoken(SAMPLE.name, SAMPLE.values, SAMPLE.path)
    assert repr(spoken) == f"{SAMPLE!r}\na < b"
    assert spoken._repr_html_() == f"{SAMPLE._repr_html_()}<p>a &lt; b</p>"


def test_escapes_texts_for_notebooks() -> None:
    page = SAMPLE._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert page.count("<tr>") == 3
