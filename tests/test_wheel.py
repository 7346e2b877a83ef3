"""The wheel: what is in it, that it is small, and that it predicts on its own. `nox -s wheel` installs it, too."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.serving.conftest import png
from tools.tables import ROOT

from fastcaps import __version__
from fastcaps.data.files import EMBEDDED
from fastcaps.data.idx import decode

LARGEST = 3_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    builders = pytest.importorskip("hatchling.builders.wheel")
    [path] = builders.WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"]
    )
    return Path(path)


def test_it_is_small_and_has_the_code_one_network_and_its_test_images(wheel):
    assert wheel.name == f"fastcaps-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size <= LARGEST
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src" / "fastcaps"
    code = {path.relative_to(source.parent).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith("fastcaps/models/")} == {
        name for name in code if "__pycache__" not in name
    }
    models = {name.removeprefix("fastcaps/models/") for name in names if name.startswith("fastcaps/models/")}
    assert {name for name in models if not name.endswith((".md", ".json"))} == {"mnist-small/model.int8.onnx"}
    assert {name for name in models if name.endswith("/run.json")} == {
        f"{name}/run.json" for name in ("cifar10", "cifar10-dynamic", "mnist", "mnist-small")
    }


@pytest.mark.slow
def test_it_predicts_without_a_connection(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    images = EMBEDDED / "mnist" / "t10k-images-idx3-ubyte.gz"
    (tmp_path / "seven.png").write_bytes(png(decode(images.read_bytes(), images.name, 3)[0]))
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
from fastcaps.cli import app
app(sys.argv[1:])
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "FASTCAPS_CACHE": str(tmp_path / "cache")}

    def run(*arguments):
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(run("predict", "mnist-small", "seven.png", "--json"))["images"][0]["fast"]["class"] == "7"
    networks = json.loads(run("models", "--json"))
    assert [network["state"] for network in networks] == [*["to download"] * 3, "int8 installed"]
    assert networks[0]["card"].startswith(str(tmp_path / "site"))
    assert not (tmp_path / "cache").exists()


def test_the_package_of_networks_has_their_version():
    project = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text())["project"]
    minor = ".".join(__version__.split(".")[:2])
    assert project["version"].startswith(f"{minor}.")
    assert project["dependencies"] == [f"fastcaps=={minor}.*"]


def test_every_place_states_the_same_version():
    assert re.findall(r"^version: (.*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [__version__]
    released = re.findall(r"^## \[([\d.]+)\] - (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    dates = re.findall(r"^date-released: (.*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert released[0] == (__version__, dates[0])
