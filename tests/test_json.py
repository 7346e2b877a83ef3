"""Reading JSON into a type: one sentence for whatever is wrong."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastcaps._json import parse_json, read_json


@dataclass(frozen=True)
class Settings:
    epochs: int
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}, expected at least 1")


@dataclass(frozen=True)
class Document:
    name: str
    settings: Settings
    rows: tuple[dict[str, int], ...] = ()


def test_reads_into_a_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"name": "a", "settings": {"epochs": 3}, "rows": [{"x": 1}], "unknown": null}')
    assert read_json(path, Document) == Document("a", Settings(3), ({"x": 1},))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"name": 3, "settings": {"epochs": 3}}', "run.json is damaged: name: expected str, got int"),
        ('{"name": "a", "settings": {"epochs": "3"}}', "run.json is damaged: settings.epochs: expected int, got str"),
        ('{"name": "a", "settings": {"epochs": 0}}', "epochs is 0, expected at least 1"),
        ('{"name": "a"}', "run.json is damaged: object missing required field settings"),
        ('{"name": "a", "settings": {"epochs": 1}, "rows": [{"x": []}]}', r"rows\[0\]\[...\]: expected int, got array"),
        ("[]", "run.json is damaged: expected object, got array"),
        ("", "run.json is not JSON"),
        ('{"name": "a', "run.json is not JSON"),
        (b"\xff\xfe", "run.json is not JSON"),
        ('{"name": NaN}', "run.json is not JSON"),
        ('{"unknown": ' + "[" * 100_000, "run.json is damaged: its values are nested too deeply|not JSON"),
        (" " * 2000, "run.json has more than 1,000 bytes"),
    ],
)
def test_refuses_with_one_sentence(content: bytes | str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        parse_json(content, Document, "run.json", limit=1_000 if len(content) == 2000 else 2**20)
    assert "\n" not in str(error.value)


def test_lists_become_arrays() -> None:
    assert parse_json("[[1, 2], [3, 4]]", NDArray[np.int64], "x").tolist() == [[1, 2], [3, 4]]
    assert np.isnan(parse_json("[1.5, null]", NDArray[np.float64], "x")).tolist() == [False, True]
    for content in ("[[1], [2, 3]]", "[1, null]", "3", '["a"]'):
        with pytest.raises(ValueError, match="x is damaged: expected lists of numbers of one shape"):
            parse_json(content, NDArray[np.int64], "x")
