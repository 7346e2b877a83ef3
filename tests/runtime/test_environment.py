"""An environment that has nothing but what inference needs."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent.parent
# What pip says when there is nobody to ask, which is no fault of the package's.
_NO_CONNECTION = ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout")


@pytest.mark.slow
def test_an_environment_without_pytorch(model_file, tmp_path):
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [scripts / "python", "-m", "pip", "install", "--quiet", *constraints, f"{ROOT}[runtime]"]
    done = subprocess.run(install, capture_output=True, text=True)
    if any(words in done.stderr for words in _NO_CONNECTION):
        pytest.skip("there is no package index to install from")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([scripts / "python", "-m", "pip", "list", "--format", "json"], capture_output=True)
    installed = {package["name"] for package in json.loads(listed.stdout)}
    assert "onnxruntime" in installed
    assert not installed & {"torch", "scikit-learn", "matplotlib", "onnx"}

    Image.fromarray(np.arange(110, dtype=np.uint8).reshape(11, 10)).save(tmp_path / "picture.png")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def answer(model: str | Path, *options: str) -> subprocess.CompletedProcess[str]:
        predict = [scripts / "fastcaps", "predict", model, tmp_path / "picture.png", "--json", *options]
        return subprocess.run(predict, capture_output=True, text=True, cwd=tmp_path, env=outside)

    for model, classes in ((model_file, 3), ("mnist", 10)):
        done = answer(model)
        assert done.returncode == 0, done.stderr
        assert int(json.loads(done.stdout)["images"][0]["fast"]["class"]) < classes
    refused = answer("mnist", "--routing", "dynamic")
    assert refused.returncode == 1
    assert "needs torch, not installed here" in refused.stderr
