"""The environment that examples/Dockerfile makes: no PyTorch, nothing written, healthy."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from benchmarks.serving import server
from tests.serving.conftest import PREDICT, request

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "examples" / "Dockerfile").read_text()
_NO_CONNECTION = ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout")


def instruction(name):
    """The last list of strings that an instruction has."""
    return json.loads(re.findall(rf"{name} (\[.*\])", DOCKERFILE)[-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the image is of Linux")
def test_the_environment_of_the_dockerfile_serves(tmp_path, digits, serial):
    folder = tmp_path / "env"
    venv.create(folder, with_pip=True)
    [extra] = re.findall(r"'/src\[(\w+)\]'", DOCKERFILE)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *constraints, f"{ROOT}[{extra}]"]
    done = subprocess.run(install, capture_output=True, text=True)
    if any(words in done.stderr for words in _NO_CONNECTION):
        pytest.skip("there is no package index to install from")
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("lib/*/site-packages/torch"))

    def inside(words):
        return [word.replace("/env/", f"{folder}/") for word in words]

    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    nowhere = {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/nowhere", "HOME": "/nowhere", "FASTCAPS_API_KEY": "secret"}
    command = [*inside(instruction("ENTRYPOINT")), *instruction("CMD"), "--port", "0"]
    with server(command, cwd=tmp_path, env=outside | nowhere) as running:
        address = running.address.replace("0.0.0.0", "127.0.0.1")
        answer = request(address, "POST", PREDICT, digits[0], x_api_key="secret")
        assert answer.json["images"][0]["fast"]["lengths"] == serial[0]
        assert request(address, "POST", PREDICT, digits[0]).status == 401
        refused = request(address, "POST", PREDICT + "?routing=both", digits[0], x_api_key="secret")
        assert (refused.status, "others need PyTorch" in refused.json["error"]) == (422, True)
        check = [word.replace("http://127.0.0.1:8000", address) for word in inside(instruction("  CMD"))]
        assert subprocess.run(check, env=outside).returncode == 0
        running.process.terminate()
        assert running.process.wait(60) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env"]
