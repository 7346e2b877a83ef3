"""Predict from the command line, as a person with pictures would."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cli import pictures as shared
from tests.cli.commands import invoke
from tests.runtime.conftest import exported, networks, small_config

run = shared.run


@pytest.fixture(scope="module")
def file(run):
    path = run.parent / "model.onnx"
    invoke("export", run, path, "--threads", 1)
    return path


@pytest.fixture
def pictures(run, tmp_path):
    """One of each class, as they are, dark on light in color, and large."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("left", "middle", "right"):
        picture = Image.open(run.parent / "photos" / "test" / name / "0.png")
        picture.save(folder / f"{name}.png")
        Image.fromarray(255 - np.asarray(picture)).convert("RGB").save(folder / f"{name}-dark.png")
        picture.resize((240, 200)).save(folder / f"{name}-large.jpg")
    return folder


@pytest.mark.slow
def test_predict_names_what_it_sees(file, pictures):
    result = json.loads(invoke("predict", file, pictures, "--json", "--threads", 1).stdout)
    assert len(result["images"]) == 9
    assert result["failed"] == []
    by_name = {entry["image"].rpartition("/")[2]: entry for entry in result["images"]}
    for name in ("left", "middle", "right"):
        assert by_name[f"{name}.png"]["fast"]["class"] == name
        assert by_name[f"{name}-dark.png"]["fast"] == by_name[f"{name}.png"]["fast"]
        assert by_name[f"{name}-large.jpg"]["fast"]["class"] == name
        assert [by_name[f"{name}{end}"]["inverted"] for end in (".png", "-dark.png", "-large.jpg")] == [0, 1, 0]
    for entry in result["images"]:
        assert 0 <= entry["fast"]["runner_up_length"] <= entry["fast"]["length"] <= 1
        assert entry["fast"]["runner_up"] != entry["fast"]["class"]


@pytest.mark.slow
def test_predict_prints_lines(file, pictures):
    said = invoke("predict", file, pictures / "left.png", pictures / "right-dark.png", "--threads", 1)
    header, first, second = (line.split() for line in said.stdout.splitlines())
    assert header == ["image", "fast", "length", "runner-up", "length", "inverted"]
    assert (first[0], first[1], first[-1]) == (str(pictures / "left.png"), "left", "no")
    assert (second[1], second[-1]) == ("right", "yes")
    assert "1 of 2 pictures were inverted (their edge is unlike the training images'; --invert no leaves" in said.stderr
    upright = invoke("predict", file, pictures / "right-dark.png", "--invert", "no", "--threads", 1)
    assert upright.stdout.splitlines()[1].endswith("no")
    assert "inverted" not in upright.stderr
    turned = invoke("predict", file, pictures / "right.png", "--invert", "yes", "--threads", 1)
    assert "1 of 1 pictures were inverted (--invert yes)" in turned.stderr


def test_what_cant_be_read_is_named_and_the_rest_is_classified(file, pictures, tmp_path):
    whole = (pictures / "left.png").read_bytes()
    (pictures / "broken.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    arguments = [pictures, tmp_path / "none.png", tmp_path / "empty"]
    result = invoke("predict", file, *arguments, "--json", "--threads", 1, code=1)
    actual = json.loads(result.stdout)
    assert len(actual["images"]) == 9
    errors = [entry["error"] for entry in actual["failed"]]
    assert errors[0] == f"{tmp_path / 'empty'} has no images in it"
    assert errors[1].startswith(f"{pictures / 'broken.png'} can't be decoded as an image (")
    assert errors[2] == f"{tmp_path / 'none.png'} does not exist"
    assert [line for line in result.stderr.splitlines() if line.startswith("error")] == [f"error: {e}" for e in errors]
    alone = invoke("predict", file, tmp_path / "none.png", "--threads", 1, code=1)
    assert alone.stdout == ""


def test_standard_input(file, pictures):
    picture = (pictures / "middle.png").read_bytes()
    result = json.loads(invoke("predict", file, "-", "--json", "--threads", 1, stdin=picture).stdout)
    assert [(entry["image"], entry["fast"]["class"]) for entry in result["images"]] == [("standard input", "middle")]
    refused = invoke("predict", file, "-", "--threads", 1, code=1, stdin=b"no picture")
    assert "error: standard input can't be decoded as an image (no known image format)" in refused.stderr


def test_a_run_routes_dynamically_and_fast(run, file, pictures):
    options = ["--routing", "both", "--invert", "no", "--threads", 1, "--json"]
    result = json.loads(invoke("predict", run, pictures / "left.png", *options).stdout)
    assert result["routing"] == ["fast", "dynamic"]
    (entry,) = result["images"]
    assert entry["dynamic"]["class"] == entry["fast"]["class"] == "left"
    options = ["--threads", 1, "--json"]
    from_file = json.loads(invoke("predict", file, pictures / "left.png", *options).stdout)["images"][0]
    assert from_file["fast"]["length"] == pytest.approx(entry["fast"]["length"], abs=1e-5)
    only = json.loads(invoke("predict", run, pictures / "left.png", *options).stdout)
    assert only["routing"] == ["fast"]


def test_a_network_that_comes_with_fastcaps(tmp_path):
    digit = np.zeros((28, 28), np.uint8)
    digit[4:24, 13:16] = 255
    Image.fromarray(255 - digit).save(tmp_path / "one.png")
    result = json.loads(invoke("predict", "mnist", tmp_path / "one.png", "--json", "--threads", 1).stdout)
    assert result["images"][0]["inverted"]
    assert result["images"][0]["fast"]["class"] == "1"


def test_refusals(file, pictures, tmp_path, missing_package):
    picture = pictures / "left.png"
    other = invoke("predict", file, picture, "--routing", "both", code=1)
    assert "model.onnx was exported with fast routing, both was asked for: export that, too, or" in other.stderr
    missing = invoke("predict", tmp_path / "none.onnx", picture, code=1)
    assert missing.stderr.endswith("none.onnx does not exist, expected a file from fastcaps.export\n")
    assert "nothing is no run: it has no run.json" in invoke("predict", "nothing", picture, code=1).stderr
    assert invoke("predict", file, code=2)
    missing_package("torch")
    no_torch = invoke("predict", "cifar10", picture, code=1)
    assert "predict with cifar10, no .onnx file, needs torch, not installed here" in no_torch.stderr


@pytest.mark.slow
def test_predict_with_a_file_doesnt_import_torch(tmp_path):
    torch.manual_seed(0)
    file = exported(networks(small_config())["fast"], tmp_path / "m.onnx")
    buffer = io.BytesIO()
    Image.new("RGB", (40, 50)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    code = f"""
import sys
from fastcaps.cli import app
try:
    app(["predict", {str(file)!r}, {str(tmp_path / "a.png")!r}, "--threads", "1"])
except SystemExit as done:
    print(done.code, [name for name in ("torch", "onnx", "sklearn") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
