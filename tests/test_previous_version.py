"""Files that version 0.1 wrote still load, with the same weights and the same answers, and runs resume.

`tests/files/v0.1` holds run folders of a small network on the digits: model, folded network, master coefficients,
exported files, and what they answered then. Weights must be equal to the bit; answers may differ in the last digits
from processor to processor.
"""

# mypy: disable-error-code="union-attr"

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import fastcaps
from fastcaps.data import batches, load
from fastcaps.runtime import load as load_onnx
from fastcaps.training import Run, Trainer, TrainSettings

FILES = Path(__file__).parent / "files" / "v0.1"
RUNS = ["run-max_min", "run-softmax"]


def expected(run):
    return safetensors.torch.load_file(FILES / run / "expected.safetensors")


@pytest.mark.parametrize("run", RUNS)
def test_model_folders(run):
    answers = expected(run)
    for kind, name in ((fastcaps.CapsNet, "dynamic"), (fastcaps.FastCapsNet, "fast")):
        network = kind.from_pretrained(FILES / run)  # the run folder
        subfolder = FILES / run / kind.folder
        stored = safetensors.torch.load_file(subfolder / "model.safetensors")
        assert {key: tensor.tolist() for key, tensor in network.state_dict().items()} == {
            key: tensor.tolist() for key, tensor in stored.items()
        }
        assert torch.equal(
            network(answers["images"]).lengths, kind.from_pretrained(subfolder)(answers["images"]).lengths
        )
        torch.testing.assert_close(network(answers["images"]).lengths, answers[name], atol=1e-5, rtol=1e-4)
    coefficients = fastcaps.CapsNet.from_pretrained(FILES / run)(answers["images"], with_coefficients=True).coefficients
    torch.testing.assert_close(coefficients, answers["coefficients"], atol=1e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_master_files(run):
    master = fastcaps.MasterCoefficients.load(FILES / run / "master.safetensors")
    assert torch.equal(master.values, expected(run)["values"])
    model = fastcaps.CapsNet.from_pretrained(FILES / run)
    assert torch.equal(
        fastcaps.fold(model, master).routing.weight, fastcaps.FastCapsNet.from_pretrained(FILES / run).routing.weight
    )
    data = load("digits")
    again = fastcaps.accumulate(model, batches(data.train, 256, view=data.augmentation.test_view))
    assert again.model_hash == master.model_hash
    torch.testing.assert_close(again.values, master.values, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("file", "name", "tolerance"),
    [
        ("run-max_min/fast.onnx", "fast", 1e-5),
        ("run-max_min/dynamic.onnx", "dynamic", 1e-4),
        ("run-softmax/dynamic.onnx", "dynamic", 1e-4),
        ("run-max_min/int8.onnx", "fast", 0.05),
    ],
)
def test_exported_files(file, name, tolerance):
    answers = expected(file.split("/")[0])
    predictor = load_onnx(FILES / file, threads=1)
    np.testing.assert_allclose(predictor(answers["images"].numpy()).lengths, answers[name], atol=tolerance)
    assert predictor.class_names == predictor.config.class_names


def test_a_stopped_run_resumes(tmp_path):
    folder = tmp_path / "stopped"
    shutil.copytree(FILES / "stopped", folder)
    data = load("digits")
    torch.manual_seed(0)
    tiny = {"stem_channels": 6, "capsule_types": 3, "lower_dimension": 4, "class_dimension": 6, "decoder": (8,)}
    model = fastcaps.CapsNet(data.config(**tiny))
    settings = TrainSettings.from_dict(json.loads((folder / "run.json").read_bytes())["settings"])
    trainer = Trainer(model, data, settings, folder)
    history = trainer.fit(resume=True)
    assert history[-1].epoch == 1
    assert Run(folder).about.state == "finished"


@pytest.mark.slow
def test_bundled_networks():
    for name in ("mnist", "cifar10-dynamic"):
        model, fast = fastcaps.CapsNet.from_pretrained(name), fastcaps.FastCapsNet.from_pretrained(name)
        run = Run.open(name)
        assert torch.equal(fast.routing.weight, fastcaps.fold(model, run.master()).routing.weight)
        # The file says the former name of the method.
        assert {**fast.provenance["master"], "method": "per_class"} == run.master().summary().to_dict()


def test_backgrounds_of_runs_that_do_not_state_them():
    assert Run.open(FILES / "run-max_min").background == 0.0
    assert Run.open("cifar10").background is None
