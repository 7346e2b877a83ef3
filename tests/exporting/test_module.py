"""Any module as one ONNX file: compared before it is written, run without PyTorch, for any size of the batch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import fastcaps
from fastcaps import nn as caps
from fastcaps.cli import app
from fastcaps.runtime import load
from fastcaps.runtime.metadata import ModuleMetadata

pytestmark = pytest.mark.usefixtures("operators_read_once")


def network(routing=None):
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        caps.PrimaryCapsules(6, types=3, dim=4, kernel_size=3),
        caps.CapsuleLayer(27, 4, 5, 6, routing=routing),
        caps.CapsuleLayer(5, 6, 3, 8, routing=routing, bias=True),
    )


@pytest.fixture
def images():
    return torch.rand(5, 3, 12, 12)


CLASSES = ("left", "middle", "right")


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A folded network and its file."""
    torch.manual_seed(0)
    model = network()
    nn.init.normal_(model[5].bias, std=0.3)
    model = fastcaps.fold(model, "uniform")
    path = tmp_path_factory.mktemp("folded") / "net.onnx"
    result = fastcaps.export(model, path, example=torch.rand(5, 3, 12, 12), class_names=CLASSES)
    assert (result.check.largest_difference < 1e-5, result.check.accuracy) == (True, None)
    return model, path


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    """A network with dynamic routing and its file."""
    torch.manual_seed(0)
    model = network(caps.DynamicRouting(2))
    path = tmp_path_factory.mktemp("dynamic") / "net.onnx"
    result = fastcaps.export(model, path, example=torch.rand(5, 3, 12, 12), class_names=CLASSES)
    assert model.training
    assert result.check.largest_difference < 1e-5
    return model, path


@pytest.mark.slow
@pytest.mark.parametrize(("exported", "routing"), [("folded", "fast"), ("dynamic", "dynamic")])
def test_a_tree_of_two_capsule_layers(exported, routing, request):
    model, path = request.getfixturevalue(exported)
    predictor = load(path, threads=1)
    assert (predictor.routing, predictor.class_names) == (routing, CLASSES)
    assert predictor.config is None
    others = torch.rand(40, 3, 12, 12)  # more than one piece
    output = predictor(others.numpy())
    with torch.no_grad():
        expected = model.eval()(others)
    np.testing.assert_allclose(output.capsules, expected, atol=1e-5)
    np.testing.assert_allclose(output.lengths, expected.norm(dim=-1), atol=1e-5)
    assert predictor(others[:0].numpy()).lengths.shape == (0, 3)


@pytest.mark.slow
def test_without_pytorch(folded, images, tmp_path):
    model, path = folded
    np.save(tmp_path / "images.npy", images.numpy())
    script = """
import sys
sys.modules.update(dict.fromkeys(["torch", "onnx", "onnxscript"]))
import json
import numpy as np
from fastcaps.runtime import load
from fastcaps.runtime.metadata import ModuleMetadata
print(json.dumps(load(sys.argv[1], threads=1)(np.load(sys.argv[2])).lengths.tolist()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, path, tmp_path / "images.npy"], capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(json.loads(done.stdout), model(images).norm(dim=-1), atol=1e-5)


@pytest.mark.slow
def test_bytes_are_scaled_and_the_command_line_predicts(folded, tmp_path):
    model, path = folded
    bytes_ = torch.randint(0, 256, (4, 3, 12, 12), dtype=torch.uint8)
    predictor = load(path, threads=1)
    lengths = model(bytes_.float() / 255).norm(dim=-1)
    np.testing.assert_allclose(predictor(bytes_.numpy()).lengths, lengths, atol=1e-5)
    Image.fromarray(bytes_[0].permute(1, 2, 0).numpy()).save(tmp_path / "picture.png")
    result = CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "picture.png"), "--json"])
    assert result.exit_code == 0, result.output
    [answer] = json.loads(result.stdout)["images"]
    assert answer["fast"]["class"] == CLASSES[int(lengths[0].argmax())]


@pytest.mark.slow
def test_a_module_that_takes_bytes_and_one_without_capsules(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 4)

        def forward(self, inputs):
            return self.layer(inputs.float().flatten(1) / 255)

    model = Scaled()
    inputs = torch.randint(0, 256, (3, 3, 2, 2), dtype=torch.uint8)
    about = fastcaps.export(model, tmp_path / "m.onnx", example=inputs).metadata
    assert isinstance(about, ModuleMetadata)
    assert (about.routing, about.outputs, about.class_names) == ("none", ("output",), ("0", "1", "2", "3"))
    assert load(tmp_path / "m.onnx").about == about
    predictor = load(tmp_path / "m.onnx", threads=1)
    expected = model(inputs).detach().numpy()
    np.testing.assert_allclose(predictor.scores(inputs.numpy()), expected, atol=1e-5)
    assert predictor.predict(inputs.numpy()).tolist() == expected.argmax(1).tolist()
    with pytest.raises(ValueError, match=r"this file has no capsules, but one output: use run\(\) or scores\(\)"):
        predictor(inputs.numpy())
    with pytest.raises(ValueError, match="images are float32, expected a NumPy array of uint8 between 0 and 255: "):
        predictor.scores(inputs.float().numpy())
    flat = nn.Linear(6, 2)
    fastcaps.export(flat, tmp_path / "flat.onnx", example=torch.rand(2, 6))
    predictor = load(tmp_path / "flat.onnx", threads=1)
    assert predictor.image is None
    with pytest.raises(ValueError, match=r"images have shape \(2, 5\), expected \(batch, 6\)"):
        predictor.run(np.zeros((2, 5), np.float32))
    result = CliRunner().invoke(app, ["predict", str(tmp_path / "flat.onnx"), str(tmp_path / "x.png")])
    assert result.exit_code == 1
    assert "takes inputs of shape (6,), expected (channels, height, width)" in result.stderr


@pytest.mark.slow
def test_accuracy_and_a_fixed_batch(images, tmp_path):
    model = fastcaps.fold(network(), "uniform")
    labels = model(images).norm(dim=-1).argmax(1)
    result = fastcaps.export(model, tmp_path / "m.onnx", example=images, tests=[(images, labels)], batch=2)
    assert (result.check.accuracy, result.check.changed) == (1.0, 0)
    predictor = load(tmp_path / "m.onnx", threads=1)
    np.testing.assert_allclose(predictor(images.numpy()).lengths, model(images).norm(dim=-1), atol=1e-5)


class CountsImages(nn.Module):
    """Computes with the number of images, which an exporter takes for a constant."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(inputs).view(len(inputs), 2) * float(len(inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is nothing to compare the file with: give an example, or tests with labels"),
        ({"tests": []}, r"Sequential needs an example of its inputs, \(batch, …\); none was given"),
        ({"example": torch.rand(3)}, r"the example has shape \(3,\), expected \(batch, …\) with at least one input"),
        (
            {"example": torch.rand(0, 3, 12, 12)},
            r"the example has shape \(0, 3, 12, 12\), expected \(batch, …\) with at",
        ),
        ({"example": (torch.rand(1, 3, 12, 12),)}, r"the example is a tuple, expected a tensor of inputs \(batch, …\)"),
        ({"example": torch.rand(1, 3, 12, 12).double()}, "the example is torch.float64, expected float32 or uint8"),
        (
            {"example": torch.rand(1, 3, 12, 12), "precision": "int8"},
            "int8 is for CapsNet and FastCapsNet, not for Seq",
        ),
        pytest.param(
            {"example": torch.rand(1, 3, 12, 12), "class_names": ["a"]},
            "1 class names were given for 3 classes",
            marks=pytest.mark.slow,
        ),
        ({"example": torch.rand(1, 3, 12, 12), "batch": 0}, "batch is 0, expected at least 1"),
    ],
)
def test_what_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fastcaps.export(network(), tmp_path / "m.onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_is_refused(tmp_path):
    with pytest.raises(TypeError, match="max_loss"):
        fastcaps.export(network(), tmp_path / "m.onnx", example=torch.rand(1, 3, 12, 12), max_loss=3)  # type: ignore[call-arg]


@pytest.mark.slow
def test_models_that_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="CountsImages"):
        fastcaps.export(CountsImages(), tmp_path / "m.onnx", example=torch.rand(2, 4))

    class TwoOutputs(nn.Module):
        def forward(self, inputs):
            return {"a": inputs}

    with pytest.raises(ValueError, match="the model returns dict, expected a tensor: wrap it in a module that does"):
        fastcaps.export(TwoOutputs(), tmp_path / "m.onnx", example=torch.rand(2, 4))

    class Python(nn.Module):
        def forward(self, inputs):
            return inputs if inputs.sum() > 0 else -inputs

    with pytest.raises(ValueError, match="PyTorch could not export Python: "):
        fastcaps.export(Python(), tmp_path / "m.onnx", example=torch.rand(2, 4))
    broken = nn.Linear(4, 2)
    nn.init.constant_(broken.weight, torch.nan)
    with pytest.raises(ValueError, match="m.onnx was not written: weight has entries that are not finite"):
        fastcaps.export(broken, tmp_path / "m.onnx", example=torch.rand(2, 4))
    assert list(tmp_path.iterdir()) == []


def test_the_old_spelling_warns(tmp_path):
    from tests.runtime.conftest import networks, small_config, some_images

    from fastcaps import runtime

    model = networks(small_config())["fast"]
    images = some_images(model.config)
    with pytest.warns(DeprecationWarning, match="fastcaps.runtime.export: use fastcaps.export"):
        old = runtime.export
    about = old(model, tmp_path / "m.onnx", [(images, model.predict(images))], threads=1)
    assert about["accuracy"]["accuracy"] == 1
    again = fastcaps.export(model, tmp_path / "n.onnx", example=images, threads=1)  # without labels
    assert again.check.images == len(images)
    with pytest.raises(ValueError, match="the example is torch.float32, expected uint8"):
        fastcaps.export(model, tmp_path / "n.onnx", example=images.float())
    with pytest.raises(ValueError, match="int8 needs tests with labels, so that a loss of accuracy is seen"):
        fastcaps.export(model, tmp_path / "n.onnx", example=images, precision="int8", calibration=[images])
