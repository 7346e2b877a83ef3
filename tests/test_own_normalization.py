"""One file is enough for a normalization of one's own: sparsemax, from training to the report."""

import json
import os
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests import reference
from tests.data import tiny
from tools.tables import ROOT
from typer.testing import CliRunner

import fastcaps
from fastcaps import functional as F
from fastcaps import nn as caps
from fastcaps._registry import VARIABLE
from fastcaps.cli import app
from fastcaps.functional.normalizations import REGISTRY
from fastcaps.runtime import load as load_onnx

PLUGIN = ROOT / "examples" / "own_normalization.py"
SMALL = ["stem_channels=8", "capsule_types=4", "lower_dimension=4", "class_dimension=6", "decoder=[16]"]
rows = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=7), elements=st.floats(-9, 9)
)


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    """The class is found through the variable alone; other tests don't see it."""
    monkeypatch.setenv(VARIABLE, str(PLUGIN))
    yield
    REGISTRY.forget("sparsemax")
    for name in [name for name in sys.modules if name.startswith("fastcaps_plugin_own_normalization")]:
        del sys.modules[name]


@pytest.mark.slow
@given(rows)
def test_it_is_sparsemax(logits):
    os.environ[VARIABLE] = str(PLUGIN)
    actual = F.get_normalization("sparsemax")(torch.from_numpy(logits))
    for one, row in zip(actual, logits, strict=True):
        np.testing.assert_allclose(one, reference.sparsemax(row), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_routing_and_its_gradient_by_autograd_inside_the_closed_form():
    sparsemax = F.get_normalization("sparsemax")
    votes = torch.randn(3, 6, 4, 5, dtype=torch.float64, requires_grad=True)
    output = F.dynamic_routing(votes, 3, sparsemax)
    for image, own, used in zip(votes.detach(), output.capsules, output.coefficients, strict=True):
        expected, coefficients = reference.routing_procedure(image.numpy(), 3, "sparsemax")
        np.testing.assert_allclose(own.detach(), expected, rtol=1e-9)
        np.testing.assert_allclose(used, coefficients[-1], rtol=1e-7, atol=1e-12)
    assert torch.autograd.gradcheck(lambda v: F.dynamic_routing(v, 3, sparsemax).capsules, (votes,))


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered", "operators_read_once")
def test_the_whole_way(tmp_path, monkeypatch):
    """Train, accumulate, fold, evaluate, analyze, export (PyTorch's exporter takes over) by the command line."""
    tiny.use_few_digits(monkeypatch)
    run = tmp_path / "run"
    runner = CliRunner()

    def fastcaps_(*arguments):
        result = runner.invoke(app, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result

    changes = [word for change in SMALL for word in ("--set", change)]
    fastcaps_("train", "--data", "digits", "--out", run, "--normalization", "sparsemax", "--epochs", 1, *changes)
    fastcaps_("accumulate", run)
    fastcaps_("evaluate", run)
    fastcaps_("analyze", run)
    assert json.loads((run / "run.json").read_bytes())["config"]["normalization"] == "sparsemax"
    page = (run / "report" / "index.html").read_text()
    assert "iterations of sparsemax routing" in page
    for routing in ("dynamic", "fast"):
        fastcaps_("export", run, tmp_path / f"{routing}.onnx", "--routing", routing)
    model = fastcaps.CapsNet.from_pretrained(run)
    images = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    predictor = load_onnx(tmp_path / "dynamic.onnx", threads=1)
    np.testing.assert_allclose(predictor(images.numpy()).lengths, model(images).lengths.detach(), atol=1e-4)
    master = fastcaps.MasterCoefficients.load(run / "master.safetensors")
    assert master.normalization.name == "sparsemax"
    # A file that was exported is run without the class, and without PyTorch.
    script = "import sys; sys.modules['torch'] = None; from fastcaps.runtime import load; load(sys.argv[1])"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    subprocess.run([sys.executable, "-c", script, tmp_path / "dynamic.onnx"], check=True, env=environment)


def test_without_the_class(monkeypatch):
    monkeypatch.delenv(VARIABLE)
    REGISTRY.forget("sparsemax")
    message = (
        "normalization is 'sparsemax', expected one of max_min, softmax, leaky_softmax.*, or one of your own: import"
    )
    with pytest.raises(ValueError, match=message):
        fastcaps.CapsNet(fastcaps.CapsNetConfig.mnist(normalization="sparsemax", stem_channels=4))
    result = CliRunner().invoke(app, ["train", "--data", "digits", "--out", "x", "--normalization", "sparsemax"])
    assert result.exit_code == 2
    assert "--normalization sparsemax: normalization is 'sparsemax', expected one of" in result.output
    monkeypatch.setenv(VARIABLE, "not_there, ")
    with pytest.raises(
        ValueError, match="FASTCAPS_PLUGINS names not_there, which can't be imported: ModuleNotFoundError"
    ):
        F.get_normalization("sparsemax")
    monkeypatch.setenv(VARIABLE, "nowhere/x.py")
    with pytest.raises(
        ValueError, match=r"FASTCAPS_PLUGINS names nowhere/x.py, which can't be imported: FileNotFoundError"
    ):
        F.get_normalization("sparsemax")


def test_names_are_taken_once():
    sparsemax = runpy.run_path(str(PLUGIN))["Sparsemax"]
    assert F.get_normalization("sparsemax").__class__ is sparsemax
    assert sparsemax.title == "sparsemax"
    with pytest.raises(
        ValueError, match="normalization 'softmax' is already fastcaps.functional.normalizations.Softmax"
    ):
        type("Mine", (caps.Normalization,), {"name": "softmax"})
    with pytest.raises(ValueError, match="the name of Mine is 'a b', expected a Python identifier such as 'sparsemax'"):
        type("Mine", (caps.Normalization,), {"name": "a b"})
    # A class that is defined again, as in a notebook, replaces itself.
    again = runpy.run_path(str(PLUGIN))["Sparsemax"]
    assert F.get_normalization("sparsemax").__class__ is again
