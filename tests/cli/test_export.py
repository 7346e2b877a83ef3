"""Export from the command line."""

import json

import numpy as np
import pytest
from tests.cli import pictures as shared
from tests.cli.commands import invoke

from fastcaps.runtime import load

run = shared.run


@pytest.mark.slow
def test_export(run, tmp_path):
    said = invoke("export", run, tmp_path / "m.onnx", "--threads", 1)
    title, *table = said.stdout.splitlines()
    assert title == str(tmp_path / "m.onnx")
    assert [cell.strip() for cell in table[3].split("│")][1:3] == ["fast", "float32"]
    assert f"next: fastcaps predict {tmp_path / 'm.onnx'} IMAGE …" in said.stderr
    options = ["--routing", "dynamic", "--precision", "int8", "--batch", 2, "--limit", 5, "--threads", 1, "--json"]
    about = json.loads(invoke("export", run, tmp_path / "d.onnx", *options).stdout)
    assert about["bytes"] == (tmp_path / "d.onnx").stat().st_size
    assert (about["routing"], about["precision"], about["batch"]) == ("dynamic", "int8", 2)
    assert about["accuracy"]["images"] == 5
    assert about["background"] < 0.2
    assert about["config"]["class_names"] == ["left", "middle", "right"]
    assert "data_provenance" in about["provenance"]
    assert load(tmp_path / "d.onnx", threads=1).predict(np.zeros((5, 1, 20, 24), np.uint8)).shape == (5,)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["nowhere", "x.onnx"], "nowhere is no run: it has no run.json", 1),
        (["mnist", "x.onnx", "--batch", "many"], "--batch many: expected dynamic or a number of images", 2),
        (["mnist", "x.onnx", "--batch", "0"], "--batch 0: expected dynamic or a number of images", 2),
        (["mnist", "x.onnx", "--precision", "int4"], "int4", 2),
        (["mnist", "x.onnx", "--max-drop", "-1"], "--max-drop", 2),
        (
            ["mnist", "x.onnx", "--routing", "dynamic", "--coefficients", "m"],
            "--coefficients m: dynamic routing uses none, leave it out",
            1,
        ),
    ],
)
def test_wrong_exports(arguments, message, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in invoke("export", *arguments, code=code).stderr
    assert not list(tmp_path.iterdir())
