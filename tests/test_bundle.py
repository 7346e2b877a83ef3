"""Putting a network into the package: rounded, measured after that, with a card."""

import json
from dataclasses import replace

import pytest
import torch
from tests.data import tiny
from tools import bundle
from tools.cards import card
from typer.testing import CliRunner

from fastcaps import CapsNet, FastCapsNet, bundled, workflows
from fastcaps._result import plain
from fastcaps.cli import app
from fastcaps.compression import CompressSettings, RefitSettings
from fastcaps.runtime import load
from fastcaps.training import Run


@pytest.fixture(scope="module", autouse=True)
def _few_digits():
    with pytest.MonkeyPatch.context() as patch:
        tiny.use_few_digits(patch)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny network that has seen digits once."""
    folder = tmp_path_factory.mktemp("bundle") / "run"
    options = ["--epochs", "1", "--threads", "1", "--set", "stem_channels=8", "--set", "capsule_types=2"]
    options += ["--set", "decoder=[8]", "--data-dir", "somewhere"]
    done = CliRunner().invoke(app, ["train", "--data", "digits", "--out", str(folder), *options])
    assert done.exit_code == 0, done.output
    return Run.open(folder)


@pytest.fixture
def package(tmp_path, monkeypatch, unrendered):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    monkeypatch.setattr(bundle, "MODELS", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_everything_in_one_command(run, package, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bundle", str(run.folder), "small", "--onnx"])
    bundle.main()
    folder = package / "small"
    said = bundled.describe("small")
    assert json.dumps(plain(said), indent=2) in capsys.readouterr().out
    assert said.onnx == str(folder / bundled.ONNX)
    about = Run.open("small").about
    assert "somewhere" not in str(about.command)
    assert about.evaluation == said.accuracy
    # The stored weights are halves, and what was measured is what they do.
    stored = CapsNet.from_pretrained("small").state_dict()
    for name, tensor in run.model().state_dict().items():
        torch.testing.assert_close(stored[name], tensor.half().float(), rtol=0, atol=0)
    assert about.more["embedded_digits"]["dynamic"] == said.accuracy["dynamic"]  # its test images are the same digits
    assert about.more["embedded_digits"]["fast"] == said.accuracy["fast"]
    assert load(folder / bundled.ONNX).config == FastCapsNet.from_pretrained("small").config
    text = (folder / "README.md").read_text()
    assert text == card(folder)
    for words in (
        said.weights_sha256,
        f"{said.accuracy['fast']:.2%}",
        "`model.int8.onnx`",
        "Apache-2.0",
        "1 epochs",
    ):
        assert words in text
    # Without --onnx an exported file of other weights doesn't stay.
    bundle.bundle(run, folder)
    assert not (folder / bundled.ONNX).exists()
    assert "onnx" not in (folder / "README.md").read_text()
    assert bundled.ONNX in bundled.large_files("small")
    # Cards are written again from what is recorded.
    (folder / "README.md").write_text("old")
    monkeypatch.setattr("sys.argv", ["bundle", "--cards"])
    bundle.main()
    assert (folder / "README.md").read_text() == card(folder)
    assert list(bundled.large_files("small")) == ["master.safetensors", "model/model.safetensors"]


@pytest.mark.slow
def test_too_large_an_export_stays_out(run, package, monkeypatch):
    monkeypatch.setattr(bundle, "LARGEST_ONNX", 10)
    with pytest.raises(ValueError, match="the int8 file has [0-9,]+ bytes, at most 10 go into the package"):
        bundle.bundle(run, package / "small", onnx=True)
    assert not list(package.iterdir())


@pytest.mark.parametrize("arguments", [[], ["runs/mnist"], ["runs/mnist", "mnist", "--cards"]])
def test_wrong_use(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bundle", *arguments])
    with pytest.raises(SystemExit):
        bundle.main()
    assert "give a run and a name, or --cards" in capsys.readouterr().err


def test_a_run_that_is_not_finished(run, tmp_path, monkeypatch, capsys):
    Run(tmp_path).write_about(replace(run.about, state="running"))
    monkeypatch.setattr("sys.argv", ["bundle", str(tmp_path), "small"])
    with pytest.raises(SystemExit):
        bundle.main()
    assert f"{tmp_path} is not finished" in capsys.readouterr().err


@pytest.mark.slow
def test_a_compressed_network(run, package, tmp_path, monkeypatch):
    monkeypatch.setattr("fastcaps.workflows.compression.time_networks", lambda networks: ())
    workflows.accumulate(run, threads=1)
    settings = CompressSettings(types=1, maps=4, held_out=30, refit=RefitSettings(epochs=1))
    workflows.compress(run, tmp_path / "compressed", settings=settings, threads=1)
    bundle.bundle(Run.open(tmp_path / "compressed"), package / "tiny")
    stored = Run.open("tiny")
    assert torch.equal(stored.master().values, torch.ones_like(stored.master().values))
    about = stored.about
    assert about.to_dict()["evaluation"]["fast"] == about.to_dict()["evaluation"]["uniform"]
    assert "to 1 capsule types and 4 feature maps" in (package / "tiny" / "README.md").read_text()
