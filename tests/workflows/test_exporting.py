"""Exporting the network of a run."""

import pytest
import torch

from fastcaps import workflows
from fastcaps.runtime import load
from fastcaps.training import Run


@pytest.mark.slow
def test_export_of_a_run(run, data, tmp_path):
    result = workflows.export(run, tmp_path / "m.onnx", data=data, limit=30, threads=1)
    assert (result.routing, result.precision, result.check.images) == ("fast", "float32", 30)
    predictor = load(result.file, threads=1)
    assert predictor.background == 0
    images = data.augmentation.middle(data.test.images(torch.arange(5)))
    assert predictor.predict(images.numpy()).shape == (5,)
    dynamic = workflows.export(Run.open(run), tmp_path / "d.onnx", routing="dynamic", batch=3, limit=9, data=data)
    assert (dynamic.routing, dynamic.metadata.batch) == ("dynamic", 3)


def test_what_is_refused(run, data, tmp_path):
    with pytest.raises(ValueError, match="coefficients=m.st: dynamic routing uses none, leave it out"):
        workflows.export(run, tmp_path / "m.onnx", routing="dynamic", coefficients="m.st", data=data)
    with pytest.raises(TypeError, match="devise"):
        workflows.export(run, tmp_path / "m.onnx", devise="cpu")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="pass the same data set as data="):
        workflows.export(run, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
