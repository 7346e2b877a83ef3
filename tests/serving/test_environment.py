"""Environments without PyTorch: what inference needs, and what examples/Dockerfile installs on top of it."""

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from benchmarks.serving import server
from packaging.requirements import Requirement
from tests.serving.conftest import PREDICT, request

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "examples" / "Dockerfile").read_text()
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# What pip says when there is nobody to ask, which is no fault of the package's.
_NO_CONNECTION = ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the image is of Linux"),
]


def pip(*arguments: str | Path) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    if any(words in done.stderr for words in _NO_CONNECTION):
        pytest.skip("there is no package index to install from")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    return folder


@pytest.fixture(scope="module")
def install(environment, tmp_path_factory):
    """Install the wheel, and link what an extra of it needs from here: nothing else can be imported."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, ROOT / "models")
    models_wheel, wheel = sorted(folder.iterdir(), key=lambda path: path.name.startswith("fastcaps-"))
    python = environment / "bin" / "python"
    pip("--python", python, "install", "--quiet", "--no-compile", "--no-deps", wheel)
    [site] = environment.glob("lib/*/site-packages")
    [ours] = distributions(name="fastcaps", path=[str(site)])

    def install(extra: str, models: bool = False) -> None:
        if models:
            pip("--python", python, "install", "--quiet", "--no-compile", "--no-deps", models_wheel)
        for needed in needed_by(ours, extra):
            for file in needed.files or ():
                target = site / file.parts[0]
                if file.parts[0] != ".." and not target.exists():
                    target.symlink_to(Path(str(needed.locate_file(file.parts[0]))))

    return install


def needed_by(package: Distribution, extra: str = "") -> Iterator[Distribution]:
    """All that a package with an extra of it requires, and what that requires."""
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            if requirement.name == package.name:  # extras of its own
                for other in requirement.extras:
                    yield from needed_by(package, other)
            else:
                other_package = distribution(requirement.name)
                assert requirement.specifier.contains(other_package.version, prereleases=True)
                yield other_package
                for other in ("", *requirement.extras):
                    yield from needed_by(other_package, other)


def test_prediction_without_pytorch(environment, install, digits, tmp_path):
    install("runtime")
    listed = pip("--python", environment / "bin" / "python", "list", "--format", "json")
    installed = {package["name"] for package in json.loads(listed)}
    assert "onnxruntime" in installed
    assert not installed & {"torch", "scikit-learn", "matplotlib", "onnx", "starlette"}
    (tmp_path / "seven.png").write_bytes(digits[0])

    def predict(*options: str) -> subprocess.CompletedProcess[str]:
        command = [environment / "bin" / "fastcaps", "predict", "mnist-small", "seven.png", "--json", *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=OUTSIDE)

    done = predict()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"][0]["fast"]["class"] == "7"
    refused = predict("--routing", "dynamic")
    assert refused.returncode == 1
    assert "needs torch, not installed here" in refused.stderr


def instruction(name: str) -> list[str]:
    """The last list of strings of an instruction of the Dockerfile."""
    words: list[str] = json.loads(re.findall(rf"{name} (\[.*\])", DOCKERFILE)[-1])
    return words


def test_the_environment_of_the_dockerfile_serves(environment, install, tmp_path, digits, serial):
    [extra] = re.findall(r"'/src\[(\w+)\]' /src/models", DOCKERFILE)
    install(extra, models=True)
    assert not list(environment.glob("lib/*/site-packages/torch"))

    def inside(words: list[str]) -> list[str]:
        return [word.replace("/env/", f"{environment}/") for word in words]

    nowhere = {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/nowhere", "HOME": "/nowhere", "FASTCAPS_API_KEY": "secret"}
    command = [*inside(instruction("ENTRYPOINT")), *instruction("CMD"), "--port", "0"]
    with server(command, cwd=tmp_path, env=OUTSIDE | nowhere) as running:
        address = running.address.replace("0.0.0.0", "127.0.0.1")
        answer = request(address, "POST", PREDICT, digits[0], x_api_key="secret")
        assert answer.json["images"][0]["fast"]["lengths"] == serial[0]
        assert request(address, "POST", PREDICT, digits[0]).status == 401
        refused = request(address, "POST", PREDICT + "?routing=both", digits[0], x_api_key="secret")
        assert (refused.status, "others need PyTorch" in refused.json["error"]) == (422, True)
        check = [word.replace("http://127.0.0.1:8000", address) for word in inside(instruction("  CMD"))]
        assert subprocess.run(check, env=OUTSIDE).returncode == 0
        running.process.terminate()
        assert running.process.wait(60) == 0
    assert not list(tmp_path.iterdir())
