"""Evaluate from the command line, as a person with images of their own would."""

import json

import pytest
import torch
from tests.cli.commands import SMALL, invoke

from fastcaps import CapsNet, FastCapsNet, MasterCoefficients, fold


@pytest.fixture
def run(images, tmp_path):
    """A run that holds out six images, with its coefficients."""
    folder = tmp_path / "run"
    invoke("train", "--data", images, "--out", folder, "--validation", 6, *SMALL)
    invoke("accumulate", folder)
    return folder


@pytest.mark.slow
def test_the_whole_way_with_ones_own_images(images, tmp_path):
    run = tmp_path / "run"
    trained = invoke("train", "--data", images, "--out", run, "--test-every", 1, *SMALL)
    assert f"next: fastcaps accumulate {run}" in trained.stderr
    assert "epoch 2/2 step 3/3" in trained.stderr
    invoke("accumulate", run)
    result = json.loads(invoke("evaluate", run, "--json").stdout)
    assert (result["images"], result["class_names"]) == (9, ["apple", "leaf", "sky"])
    assert set(result["variants"]) == {"dynamic", "fast", "uniform", "ceiling"}
    assert (
        result["variants"]["dynamic"]["accuracy"]
        == json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"]
    )
    assert (run / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "evaluation.json").read_text()) == result
    model, fast = CapsNet.from_pretrained(run / "model"), FastCapsNet.from_pretrained(run / "fast")
    assert (model.config.height, model.config.width, model.config.channels) == (40, 32, 3)
    again = fold(model, MasterCoefficients.load(run / "master.safetensors"))
    values = MasterCoefficients.load(run / "master.safetensors").values
    assert result["master_range"] == [float(values.min()), float(values.max())]
    batch = torch.rand(2, 3, 40, 32)
    torch.testing.assert_close(again(batch).lengths, fast(batch).lengths)
    table = invoke("evaluate", run, "--limit", 4).stdout
    assert "4 test images" in table
    assert "McNemar" in table


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_trial_does_not_replace_the_runs_own_evaluation(images, tmp_path):
    run = tmp_path / "run"
    invoke("train", "--data", images, "--out", run, *SMALL)
    invoke("accumulate", run)
    invoke("evaluate", run)
    before = (run / "evaluation.json").read_bytes()
    for options in (["--limit", 2], ["--part", "train"], ["--coefficients", run / "master.safetensors"]):
        assert "evaluation.json" not in invoke("evaluate", run, *options).stderr
        assert (run / "evaluation.json").read_bytes() == before
    invoke("evaluate", run, "--limit", 2, "--out", tmp_path / "trial")
    assert json.loads((tmp_path / "trial" / "evaluation.json").read_text())["images"] == 2
    refused = invoke("evaluate", run, "--part", "validation", code=1)
    assert (
        f"{run} held out no images for validation: train with validation images, or take --part test" in refused.stderr
    )
    invoke("accumulate", run, "--out", tmp_path / "others.safetensors")
    assert (run / "evaluation.json").read_bytes() == before
    invoke("accumulate", run, "--iteration", "final")  # other coefficients: what was measured is of those before
    assert not (run / "evaluation.json").exists()
    assert not (run / "confusion.png").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_network_that_comes_with_fastcaps_is_compared_with_by_name():
    result = json.loads(invoke("evaluate", "mnist", "--compare", "mnist", "--limit", 20, "--json").stdout)
    assert (result["other"]["run"], result["other"]["routing"]) == ("mnist", "dynamic")
    assert result["variants"]["other"]["confusion"] == result["variants"]["dynamic"]["confusion"]


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_only_runs_of_the_same_images_are_compared(run, images, tmp_path):
    invoke("train", "--data", images, "--out", tmp_path / "all", *SMALL)
    invoke("evaluate", run, "--compare", tmp_path / "all")
    refused = invoke("evaluate", run, "--compare", tmp_path / "all", "--part", "validation", code=1)
    words = f"{tmp_path / 'all'} was trained with no images held out, {run} with 6 images held out by seed 0: one of"
    assert words in refused.stderr
    (images / "test" / "sky" / "0.png").unlink()
    invoke("train", "--data", images, "--out", tmp_path / "fewer", *SMALL)
    refused = invoke("evaluate", run, "--compare", tmp_path / "fewer", code=1)
    assert f"{tmp_path / 'fewer'} was trained with other images (photos, fingerprint " in refused.stderr


@pytest.mark.slow
def test_former_options(run):
    done = invoke("evaluate", run, "--against", run, "--master", run / "master.safetensors", "--limit", 3)
    assert "warning: --against is deprecated, use --compare\n" in done.stderr
    assert "warning: --master is deprecated, use --coefficients\n" in done.stderr


def test_an_unknown_part():
    assert "all" in invoke("evaluate", "nowhere", "--part", "all", code=2).stderr
