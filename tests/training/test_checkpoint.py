"""Progress and metrics that no run can have written."""

from typing import Any

import pytest

from fastcaps.training.checkpoint import Progress
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.run import Run

ROW = {"epoch": 1, "loss": 0.5, "accuracy": 0.25, "learning_rate": 0.001, "fast_test_accuracy": 0.5, "seconds": 1.5}


def values(**changes: Any) -> dict[str, Any]:
    return {**Progress(epoch=1, history=[EpochMetrics.from_dict(ROW)]).to_dict(), **changes}


def test_progress_as_json_and_back() -> None:
    progress = Progress.from_dict(values(best=ROW))
    assert progress.to_dict() == values(best=progress.history[0].to_dict())
    assert progress.history[0].measures == {"fast_test_accuracy": 0.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"history": None}, "the Progress is damaged: history: expected array, got null"),
        ({"history": [3]}, r"the Progress is damaged: history\[0\]: expected object, got int"),
        ({"epoch": "1"}, "the Progress is damaged: epoch: expected int, got str"),
        ({"epoch": 2}, "epoch is 2 and step 0, with the metrics of 1 epochs"),
        ({"step": -1}, "epoch is 1 and step -1, with the metrics of 1 epochs"),
        ({"sums": {"loss": 1.0}}, "the sums are {'loss': 1.0}, expected loss, correct and images"),
    ],
)
def test_damaged_progress(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Progress.from_dict(values(**changes))


def test_damaged_metrics(tmp_path: Any) -> None:
    run = Run(tmp_path)
    run.metrics_file.write_text('{"epoch": 1}\n')
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl is damaged: object missing"):
        run.metrics()
    run.metrics_file.write_text("[]")
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl is damaged: expected object, got array"):
        run.metrics()
    run.metrics_file.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl is not JSON"):
        run.metrics()
