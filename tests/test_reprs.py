"""Objects say in a line what they are; figures are pictures in notebooks; parts of data sets are torch datasets."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fastcaps
from fastcaps._machine import usable_devices
from fastcaps.analysis.figures import confusion_figure
from fastcaps.bundled import FOLDER, ONNX
from fastcaps.data import load
from fastcaps.master import MasterAccumulator, Observations, uniform_coefficients
from fastcaps.runtime import load as load_file
from fastcaps.training import Run, TrainConfig, Trainer, TrainSettings


def test_every_repr_is_short(tmp_path):
    data = load("digits")
    config = data.config(stem_channels=8, capsule_types=2, decoder=(4,))
    trainer = Trainer(fastcaps.CapsNet(config), data, TrainSettings(epochs=3), tmp_path / "run")
    numbers = torch.zeros(4, 3).numpy()
    for value, expected in (
        (config, "CapsNetConfig(stem_channels=8, capsule_types=2, decoder=(4,))"),
        (TrainSettings(epochs=3), "TrainSettings(epochs=3)"),
        (TrainConfig().changed(epochs=3, data="digits"), "TrainConfig(data=DataOptions(name='digits'), training={'epo"),
        (trainer, "Trainer('digits', "),
        (uniform_coefficients(config), "MasterCoefficients(72×10, 0 images, max_min, per_class, iteration 1)"),
        (MasterAccumulator(5, 3), "MasterAccumulator(5×3, 0 images, max_min)"),
        (Observations(numbers[:, 0].astype(int), numbers), "Observations(4 images, without columns)"),
        (load_file(FOLDER / "mnist" / ONNX, threads=1), "Predictor(fast, int8, input 1×28×28, 10 classes)"),
    ):
        assert repr(value).startswith(expected)
        assert len(repr(value)) < 200
    assert eval(repr(config), {"CapsNetConfig": fastcaps.CapsNetConfig}) == config


def test_a_part_is_a_torch_dataset():
    test = load("digits").test
    assert isinstance(test, Dataset)
    image, label = test[-1]
    assert torch.equal(image, test.images(torch.tensor([len(test) - 1]))[0])
    assert label == int(test.labels[-1])
    images, labels = next(iter(DataLoader(test, batch_size=7)))
    assert torch.equal(images, test.images(torch.arange(7)))
    assert labels.tolist() == test.labels[:7].tolist()
    with pytest.raises(IndexError):
        test[len(test)]


def test_figures_show_in_notebooks():
    figure = confusion_figure({"dynamic": torch.eye(3).long().numpy()}, ("a", "b", "c"))
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_packages_are_attributes():
    for name in ("training", "analysis", "runtime", "data", "workflows"):
        assert getattr(fastcaps, name).__name__ == f"fastcaps.{name}"


def test_close_names(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"digitz is no run.*\(did you mean .*digits\?\)"):
        Run.open(tmp_path / "digitz")
    with pytest.raises(FileNotFoundError, match=r"\(did you mean mnist\?\)"):
        fastcaps.CapsNet.from_pretrained("mnits")
    with pytest.raises(ValueError, match=r"no data set 'fashon-mnist', and .* \(did you mean fashion_mnist\?\)"):
        load("fashon-mnist")


def test_only_usable_devices_are_named(tmp_path, monkeypatch):
    expected = ["auto", "cpu"] + ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
    assert usable_devices() == expected
    monkeypatch.delitem(__import__("sys").modules, "torch")
    (tmp_path / "dev").mkdir()
    assert "cuda" not in usable_devices(tmp_path)
    (tmp_path / "dev" / "nvidiactl").touch()
    assert usable_devices(tmp_path)[:3] == ["auto", "cpu", "cuda"]


def test_outputs_with_the_suffix_of_another_format_are_refused(tmp_path):
    for call, name, expected in (
        (fastcaps.workflows.accumulate, "m.json", ".safetensors"),
        (fastcaps.workflows.export, "m.pt", ".onnx"),
    ):
        with pytest.raises(ValueError, match=f"{name} was given as the file to write, expected a name .* {expected}"):
            call("mnist", tmp_path / name)
    with pytest.raises(ValueError, match=r"r.png was given as the file to write, expected a name that ends with .json"):
        fastcaps.workflows.evaluate("mnist", result_file=tmp_path / "r.png")
