"""The networks that come with the package, offline."""

import json
import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fastcaps import CapsNet, FastCapsNet, shipped
from fastcaps.cli import app
from fastcaps.training import Run

NAMES = shipped.names()
RESULTS = Path(__file__).parent.parent / "results"


def at_hand(name):
    folder = Path(os.environ.get("FASTCAPS_DATA", "")) / name
    return "FASTCAPS_DATA" in os.environ and folder.is_dir()


def test_there_is_one():
    assert "mnist" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_records_what_was_measured(name):
    folder = shipped.located(name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size <= 18e6
    about = Run.open(name).about
    result = json.loads((RESULTS / f"{name}.json").read_text())
    assert {k: v["accuracy"] for k, v in result["evaluation"]["variants"].items()} == about["evaluation"]
    assert result["settings"] == about["settings"]


@pytest.mark.parametrize("name", NAMES)
def test_both_networks_open_by_name_and_agree_with_their_files(name):
    model, fast = CapsNet.from_pretrained(name), FastCapsNet.from_pretrained(name)
    assert {parameter.dtype for parameter in (*model.parameters(), *fast.parameters())} == {torch.float32}
    config = model.config
    images = torch.rand(3, config.channels, config.height, config.width)
    assert fast(images).lengths.shape == model(images).lengths.shape == (3, config.classes)


@pytest.mark.parametrize("name", NAMES)
def test_it_recognises_what_it_was_trained_for(name):
    if not at_hand(name):
        pytest.skip(f"the files of {name} are not in $FASTCAPS_DATA")
    result = CliRunner().invoke(app, ["evaluate", name, "--limit", "512", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    recorded = Run.open(name).about["evaluation"]
    for way in ("dynamic", "fast"):
        low, high = found["variants"][way]["interval"]
        assert low - 0.02 <= recorded[way] <= high + 0.02


@pytest.mark.skipif("mnist" not in NAMES, reason="no network of digits comes with fastcaps")
def test_it_recognises_embedded_digits():
    """Digits of another hand and another scanner, without any file: far better than guessing."""
    from fastcaps.data import load

    data = load("digits")
    images = data.augmentation.test_view(data.test.images(torch.arange(len(data.test))))
    for network in (CapsNet.from_pretrained("mnist"), FastCapsNet.from_pretrained("mnist")):
        assert float((network.predict(images) == data.test.labels).float().mean()) > 0.6


def test_the_package_is_not_written_to():
    result = CliRunner().invoke(app, ["accumulate", "mnist"])
    assert result.exit_code == 1
    assert result.stderr == "error: mnist comes with fastcaps and is not written to: say where with --out\n"


def test_a_folder_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(FileNotFoundError, match="mnist.config.json does not exist: expected a folder with config.json"):
        CapsNet.from_pretrained("mnist")
    assert not shipped.is_shipped(tmp_path)
    with pytest.raises(FileNotFoundError, match="or the name of a network that comes with fastcaps .*mnist"):
        CapsNet.from_pretrained("nothing")
