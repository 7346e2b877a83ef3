"""What workflows return."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest

from fastcaps import CapsNetConfig
from fastcaps._result import Result, Table, plain
from fastcaps.data import Augmentation
from fastcaps.data.generated import Recipe
from fastcaps.exporting import Check, ExportResult
from fastcaps.reproduction import RunResult
from fastcaps.runtime.metadata import CAPSNET_FORMAT, CapsNetMetadata
from fastcaps.training import EpochMetrics, TrainSettings
from fastcaps.training.checkpoint import Progress, RunIdentity
from fastcaps.workflows.prediction import Classification, Prediction


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


CHECK = Check(10, 1, 0.5, 9, 8)
METADATA = CapsNetMetadata(
    format=CAPSNET_FORMAT, routing="fast", precision="int8", batch=None, config=CapsNetConfig.mnist(), accuracy=CHECK
)
ROW = {"epoch": 1, "routing": "dynamic", "loss": 0.5, "accuracy": 0.25, "learning_rate": 0.1, "seconds": 1.0}
CLASSIFICATION = Classification("2", 0.75, "3", 0.5)
RECORDS = [
    CLASSIFICATION,
    Prediction("a.png", False, {"fast": CLASSIFICATION, "dynamic": CLASSIFICATION}),
    Recipe(recipe="a", seed=0, train=1, test=2, sources={"x": None}, details={"angle": [1, 2]}),
    EpochMetrics(epoch=1, loss=0.5, accuracy=0.25, learning_rate=0.1, seconds=1.0, measures={"x": 1.0}),
    Progress(sums={"loss": 1.0, "correct": 1.0, "images": 2.0}),
    RunIdentity(
        settings=TrainSettings(epochs=3, decay="cosine"),
        config=CapsNetConfig.mnist(iterations=2),
        augmentation=Augmentation(crop=(2, 3)),
        data="d",
        convolution="auto",
        master=None,
        init=None,
    ),
    ExportResult(Path("a.onnx"), 3, CHECK, METADATA),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_is_read_as_it_was_written(record, tmp_path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record.to_dict()))
    for again in (type(record).from_dict(record.to_dict()), type(record).load(file)):
        for field in fields(record):
            assert getattr(again, field.name) == getattr(record, field.name)


def test_a_file_is_read_as_its_entries_are(tmp_path) -> None:
    file = tmp_path / "record.json"
    file.write_text('{"afresh": true, "refresh": 1, "dynamic_epochs": 1, "epochs": 3}')
    assert TrainSettings.load(file) == TrainSettings(reinit=True, refresh_every=1, dynamic_epochs=1, epochs=3)
    file.write_text('{"epochz": 3}')
    with pytest.raises(ValueError, match=r"record\.json is damaged: epochz is no setting"):
        TrainSettings.load(file)
    with pytest.raises(ValueError, match=r"record\.json has unknown entries: epochz"):
        Augmentation.load(file)


@pytest.mark.parametrize(("kind", "value", "json_type"), [(RunResult, [], "array"), (Augmentation, None, "null")])
def test_what_is_no_object_is_named(kind, value, json_type) -> None:
    with pytest.raises(ValueError, match=f"the {kind.__name__} is damaged: expected object, got {json_type}"):
        kind.from_dict(value)


def test_not_a_number_survives() -> None:
    metrics = EpochMetrics.from_dict({**ROW, "own": None, "test_accuracy": None})
    assert np.isnan(metrics.measures["own"])
    assert metrics.test_accuracy is None
    assert metrics.to_dict() == {**ROW, "own": None}
    infinite = EpochMetrics.from_dict({**ROW, "own": float("inf")})
    assert json.dumps(infinite.to_dict(), allow_nan=False)
