"""Train, accumulate, evaluate from the command line, as a person with images of their own would."""

import json
import signal

import numpy as np
import pytest
from PIL import Image
from tests.ranks import command
from typer.testing import CliRunner

from fastcaps.cli import app

SMALL = [
    *("--set", "stem_channels=8", "--set", "capsule_types=2", "--set", "decoder=[16]"),
    *("--epochs", "2", "--batch-size", "8", "--warmup", "2", "--threads", "1"),
]


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def images(tmp_path):
    """Three classes of 40×32 color images."""
    random = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 3)):
        for number, name in enumerate(("apple", "leaf", "sky")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = random.integers(0, 120, (40, 32, 3))
                pixels[..., number] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.png")
    return tmp_path / "photos"


def test_resume_and_other_coefficients(images, tmp_path):
    run = tmp_path / "run"
    invoke("train", "--data", images, "--out", run, *SMALL)
    refused = invoke("train", "--data", images, "--out", run, *SMALL, code=1)
    assert f"error: {run} holds a run already: pass --resume to continue it, or choose another folder" in refused.stderr
    done = json.loads(invoke("train", "--data", images, "--out", run, "--resume", "--json", *SMALL).stdout)
    assert len(done["history"]) == 2
    missing = invoke("evaluate", run, code=1)
    assert f"master.safetensors does not exist: make it with fastcaps accumulate {run}" in missing.stderr
    first = json.loads(invoke("accumulate", run, "--iteration", 1, "--out", tmp_path / "m.st", "--json").stdout)
    assert (first["iteration"], first["counts"]) == (1, [8, 8, 8])
    assert not (run / "fast").exists()
    result = json.loads(
        invoke("evaluate", run, "--coefficients", tmp_path / "m.st", "--out", tmp_path, "--json").stdout
    )
    assert result["variants"]["fast"]["against_dynamic"] == result["variants"]["uniform"]["against_dynamic"]
    (images / "train" / "sky" / "0.png").unlink()
    changed = invoke("accumulate", run, code=1)
    assert f"the images of photos are not those that {run} was trained with (fingerprint " in changed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "nothing", "--out", "x"], "mnist"),
        (["train", "--data", "digits", "--out", "x", "--device", "meta"], "device 'meta' can't be used here"),
        (["train", "--data", "digits", "--out", "x", "--seed", "99999999999999999999"], "seed is 9999999999999999999"),
        (["train", "--data", "digits", "--out", "x", "--epochs", "0"], "epochs is 0, expected a whole number"),
        (["train", "--data", "digits", "--out", "x", "--validation", "1.7"], "is 1.7, expected a fraction below 1, or"),
        (["train", "--data", "digits", "--out", "x", "--normalization", "max"], "normalization is 'max', expected one"),
        (["train", "--data", "digits", "--out", "x", "--validation", "inf"], "validation is inf, expected a fraction"),
        (
            ["train", "--data", "digits", "--out", "x", "--set", "stem_channels=1000000000000"],
            "this needs more memory than there is: choose a smaller network, smaller images or a smaller batch",
        ),
        (["train", "--data", "digits", "--out", "x", "--device", "gpu"], "device 'gpu' can't be used here"),
        (["accumulate", "nowhere"], "nowhere is no run: it has no run.json"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, code=1)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "digits", "--out", "x", "--size", "40"], "--size 40: expected height and width such"),
        (["train", "--data", "digits", "--out", "x", "--set", "stem"], "--set stem: expected name=value"),
        (["train", "--data", "digits", "--out", "x", "--set", "height=8"], "--set height=8: expected name=val"),
        (["train", "--data", "digits", "--out", "x", "--convolution", "fast"], "fast"),
        (["evaluate", "nowhere", "--part", "all"], "all"),
        (["train", "--data", "digits"], "--out"),
    ],
)
def test_wrong_use_is_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in invoke(*arguments, code=2).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_with_130(images, tmp_path):
    process = command("train", "--data", images, "--out", tmp_path / "run", *SMALL, "--epochs", 100000)
    process.wait_until((tmp_path / "run" / "metrics.jsonl").exists)
    process.send_signal(signal.SIGINT)
    code, _, err = process.wait()
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
