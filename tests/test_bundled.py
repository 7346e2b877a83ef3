"""The networks that come with the package, offline."""

import json
import os
from pathlib import Path

import pytest
import torch
from tools.bundle import on_embedded_digits
from tools.cards import card
from typer.testing import CliRunner

from fastcaps import CapsNet, FastCapsNet, bundled
from fastcaps._json import convert_json
from fastcaps._result import plain
from fastcaps.cli import app
from fastcaps.compression import CompressSettings
from fastcaps.compression.results import CompressionResult
from fastcaps.reproduction import Cell, RunResult, finished
from fastcaps.runtime import load
from fastcaps.training import Run
from fastcaps.training.accuracy import count_correct

NAMES = bundled.names()
RESULTS = Path(__file__).parent.parent / "results"

# Images that another processor's rounding may take for something else.
_SLACK = 3


def is_available(name):
    folder = Path(os.environ.get("FASTCAPS_DATA", "")) / name
    return "FASTCAPS_DATA" in os.environ and folder.is_dir()


def test_there_is_one():
    assert "mnist" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_records_what_was_measured(name):
    folder = bundled.resolve(name)
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert sizes.pop(bundled.ONNX, 0) <= 8e6
    assert sum(sizes.values()) <= 18e6
    about = Run.open(name).about
    if "compression" in about.more:
        compressed = CompressionResult.load(RESULTS / "compress-mnist.json")
        assert about.more["compression"]["size"] == plain(compressed.size)
        stored = about.more["compression"]["settings"]
        assert convert_json(stored, CompressSettings, "run.json") == compressed.settings
        return
    if about.fixed_coefficients:
        result = RunResult.load(RESULTS / "cifar10-best-24.json")
    else:
        result = finished(RESULTS)[Cell(about.data.name, about.config.normalization, about.settings.seed)]
    assert result.about.settings == about.settings
    # Rounding to half precision changes next to nothing.
    for routing, variant in result.evaluation.variants.items():
        if routing == "other":
            continue
        assert about.to_dict()["evaluation"][routing] == pytest.approx(variant.accuracy, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_its_card_is_up_to_date(name):
    folder = bundled.resolve(name)
    assert (folder / "README.md").read_text() == card(folder), "run python -m tools.bundle --cards"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_networks_open_by_name_and_agree_with_their_files(name):
    model, fast = CapsNet.from_pretrained(name), FastCapsNet.from_pretrained(name)
    assert {parameter.dtype for parameter in (*model.parameters(), *fast.parameters())} == {torch.float32}
    config = model.config
    images = torch.rand(3, config.channels, config.height, config.width)
    assert fast(images).lengths.shape == model(images).lengths.shape == (3, config.classes)


# Correct answers to the first test images.
IMAGES = 400
CORRECT = {
    "mnist": {"dynamic": 400, "fast": 400},
    "cifar10": {"dynamic": 283, "fast": 298},
    "cifar10-dynamic": {"dynamic": 283, "fast": 257},
    "mnist-small": {"dynamic": 400, "fast": 400},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_answers_as_when_it_was_recorded(name):
    run = Run.open(name)
    source = run.about.data.name
    if source != "mnist" and not is_available(source):
        pytest.skip(f"the files of {source} are not in $FASTCAPS_DATA")
    data = run.data(test_only=True)
    for routing, network in (("dynamic", CapsNet), ("fast", FastCapsNet)):
        images = data.test.first(IMAGES)
        correct = count_correct(network.from_pretrained(name), images, data.augmentation.test_view)
        assert correct == pytest.approx(CORRECT[name][routing], abs=_SLACK)
        # The recorded accuracy is that of all 10,000: four standard deviations of a sample.
        share = run.about.to_dict()["evaluation"][routing]
        assert abs(correct / IMAGES - share) < 4 * (share * (1 - share) / IMAGES) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if "embedded_digits" in Run.open(name).about.more])
def test_it_has_its_recorded_accuracy_on_embedded_digits(name):
    """Digits of another hand and another scanner, without any file."""
    recorded = Run.open(name).about.more["embedded_digits"]
    assert min(recorded.values()) > 0.6
    for way, share in on_embedded_digits(name).items():
        assert 360 * share == pytest.approx(360 * recorded[way], abs=_SLACK)


@pytest.mark.slow
def test_the_int8_file_answers_as_the_network():
    fast = FastCapsNet.from_pretrained("mnist")
    test = Run.open("mnist").data(test_only=True).test
    images = test.images(torch.arange(200))
    with torch.no_grad():
        lengths = fast(images.float() / 255).lengths
    file = load(bundled.resolve("mnist") / bundled.ONNX)
    quantized = torch.from_numpy(file(images.numpy()).lengths)
    assert float((quantized - lengths).abs().max()) < 0.03
    assert int((quantized.argmax(1) == lengths.argmax(1)).sum()) >= 200 - _SLACK
    assert (
        file.about.to_dict()["accuracy"]["original_accuracy"] == Run.open("mnist").about.to_dict()["evaluation"]["fast"]
    )


@pytest.mark.slow
def test_evaluation_needs_no_connection(tmp_path, monkeypatch):
    monkeypatch.delenv("FASTCAPS_DATA", raising=False)
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, ["evaluate", "mnist", "--limit", "100", "--json"])
    assert result.exit_code == 0, result.stderr
    actual = json.loads(result.stdout)
    assert actual["images"] == 100
    assert actual["variants"]["fast"]["accuracy"] > 0.97
    assert not (tmp_path / "cache").exists()


def test_a_result_needs_a_run_with_its_epochs(tmp_path):
    result = CliRunner().invoke(app, ["evaluate", "mnist", "--result", str(tmp_path / "mnist.json")])
    assert result.exit_code == 1
    assert "mnist/metrics.jsonl does not exist, and a result has the accuracy of every epoch: take a run" in (
        result.stderr
    )
    assert not list(tmp_path.iterdir())


def test_the_package_is_not_written_to():
    result = CliRunner().invoke(app, ["accumulate", "mnist"])
    assert result.exit_code == 1
    assert result.stderr == "error: mnist comes with fastcaps and is not written to: give another place as --out\n"


def test_a_folder_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    names = ", ".join(NAMES)
    hidden = rf"\({names}; the one called mnist is hidden by what has that name here: rename it, or"
    with pytest.raises(FileNotFoundError, match=f"mnist.config.json does not exist: expected a folder .*{hidden}"):
        CapsNet.from_pretrained("mnist")
    with pytest.raises(FileNotFoundError, match=f"mnist is no run: it has no run.json.*{hidden}"):
        Run.open("mnist")
    assert not bundled.is_bundled(tmp_path)
    with pytest.raises(FileNotFoundError, match="or the name of a network that comes with fastcaps .*mnist"):
        CapsNet.from_pretrained("nothing")
