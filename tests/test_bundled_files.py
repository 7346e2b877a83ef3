"""The files of bundled networks where the package is installed without them: cached, downloaded, or explained."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest
from PIL import Image
from tests.cli.commands import invoke
from tools.bundle import MODELS, manifest

from fastcaps import CapsNet, FastCapsNet, bundled
from fastcaps.training import Run
from fastcaps.workflows import predict

NAME, WEIGHTS = "mnist-small", "model/model.safetensors"


class _Release(http.server.BaseHTTPRequestHandler):
    """Files as a release has them: ``NAME.FILE``, none of them in a folder."""

    server: "_Server"

    def do_GET(self):
        how, name = self.path[1:].split("/")
        network, _, file = name.partition(".")
        path = MODELS / network / ("model" if file == "model.safetensors" else "") / file
        if how == "missing" or not path.is_file():
            self.send_error(404)
            return
        self.server.asked.append(name)
        content = path.read_bytes()
        content = content[::-1] if how == "wrong" else content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if how == "broken" else content)

    def log_message(self, *args):
        pass


class _Server(http.server.ThreadingHTTPServer):
    asked: list[str]


@pytest.fixture
def release(monkeypatch):
    with _Server(("127.0.0.1", 0), _Release) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("FASTCAPS_MODELS_URL", f"{address}/good")
        yield address, server.asked
        server.shutdown()
        thread.join()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """What a wheel has of the networks: descriptions, and one int8 file."""
    package = tmp_path / "package"
    ignored = shutil.ignore_patterns("*.safetensors", "*.py", "__pycache__")
    shutil.copytree(MODELS, package, ignore=ignored)
    (package / "mnist" / bundled.ONNX).unlink()
    monkeypatch.setattr(bundled, "FOLDER", package)
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTCAPS_MODELS_URL", raising=False)
    return package


def states():
    return {network.name: network.state for network in bundled.describe_all().networks}


def test_the_list_of_files_is_that_of_the_checkout():
    assert (MODELS / bundled.FILES).read_bytes() == manifest(MODELS), "run python -m tools.bundle --cards"
    assert set(states().values()) == {"installed"}
    assert bundled.resolve("mnist") == MODELS / "mnist"


def test_weights_are_downloaded_once(wheel, release, tmp_path, capsys):
    _, asked = release
    assert states() == {
        "cifar10": "to download",
        "cifar10-dynamic": "to download",
        "mnist": "to download",
        NAME: "int8 installed",
    }
    size = bundled.describe("mnist").bytes
    assert size == sum(path.stat().st_size for path in (MODELS / "mnist").rglob("*") if path.is_file())
    fast = FastCapsNet.from_pretrained(NAME)
    assert asked == [f"{NAME}.master.safetensors", f"{NAME}.model.safetensors", f"{NAME}.model.int8.onnx"]
    assert "model.safetensors: downloading from http://127.0.0.1" in capsys.readouterr().err
    assert states()[NAME] == "cached"
    folder = Run.open(NAME).folder
    assert folder.is_relative_to(tmp_path / "cache")
    assert bundled.describe(NAME).folder == str(folder)
    assert bundled.is_bundled(folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in (MODELS / NAME).iterdir()}
    assert CapsNet.from_pretrained(NAME).config == fast.config
    assert len(asked) == 3
    said = invoke("models")
    for words in ("cached", "to download"):
        assert words in said.stdout
    assert f"{NAME}: {wheel / NAME}/README.md" in said.stderr


def test_the_int8_file_is_enough_without_pytorch(wheel, release, tmp_path, monkeypatch):
    monkeypatch.setattr("fastcaps.workflows.prediction.find_spec", lambda name: None)
    Image.new("L", (28, 28)).save(tmp_path / "picture.png")
    _, asked = release
    assert bundled.resolve(NAME, exported=True) == wheel / NAME
    assert bundled.resolve("cifar10", exported=True) == wheel / "cifar10"  # it has none
    with pytest.raises(
        FileNotFoundError, match=r"cifar10 has no exported file model.int8.onnx: expected one of mnist,"
    ):
        bundled.exported_file("cifar10")
    assert asked == []
    assert len(predict("mnist", tmp_path / "picture.png").images) == 1
    assert asked == ["mnist.model.int8.onnx"]
    assert states()["mnist"] == "int8 cached"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "HTTP status 404"),
        ("wrong", "its checksum does not match"),
        ("broken", "ChunkedEncodingError"),
        (None, "(FASTCAPS_MODELS_URL names no address)"),
    ],
)
def test_one_error_says_where_the_files_can_come_from(wheel, release, tmp_path, monkeypatch, how, reason):
    monkeypatch.setenv("FASTCAPS_MODELS_URL", f"{release[0]}/{how}/" if how else "")
    cache = tmp_path / "cache"
    with pytest.raises(FileNotFoundError) as caught:
        CapsNet.from_pretrained(NAME)
    message = str(caught.value)
    [folder] = {word.strip("(),") for word in message.split() if word.startswith(str(cache))}
    assert f"neither installed (in {wheel / NAME}) nor cached (in {folder})" in message
    assert reason in message
    assert "python -m pip install 'fastcaps-models==" in message
    assert message.endswith(f"put master.safetensors and {WEIGHTS} and {bundled.ONNX} into {folder}")
    assert not cache.exists()
    # As it says: files that are put there are used.
    for path in ("master.safetensors", WEIGHTS, bundled.ONNX):
        (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(MODELS / NAME / path, Path(folder) / path)
    assert states()[NAME] == "cached"
    assert CapsNet.from_pretrained(NAME).config.classes == 10


def test_damaged_files_in_the_cache_are_refused(wheel, release):
    folder = bundled.resolve(NAME)
    (folder / WEIGHTS).write_bytes(b"other")
    with pytest.raises(ValueError, match="model.safetensors is damaged or belongs to another model: its SHA-256 is"):
        CapsNet.from_pretrained(NAME)
    networks = {network["name"]: network for network in json.loads(invoke("models", "--json").stdout)}
    assert networks[NAME]["state"] == "cached"
