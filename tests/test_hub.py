"""Networks on the Hugging Face Hub, against a local fake of it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests import hub as fake
from tests.cli.commands import invoke

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, bundled, fold
from fastcaps.serving.models import open_model
from fastcaps.training import Run

pytest.importorskip("huggingface_hub")

RUN = Path(__file__).parent / "files" / "v0.1" / "run-max_min"
CONFIG = CapsNetConfig(stem_channels=4, capsule_types=1, decoder=(4,))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The fake; huggingface_hub reads its settings when it is imported."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, fake.running() as hub:
        patch.setenv("HF_ENDPOINT", hub.address)
        patch.setenv("HF_HOME", str(home))
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
            patch.delenv(name, raising=False)
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            patch.delitem(sys.modules, name)
        yield hub
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            del sys.modules[name]


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The fake without repositories, and an empty cache; the current folder is empty, too."""
    from huggingface_hub import constants

    for collection in (server.repositories, server.private, server.gated, server.broken, server.downloads):
        collection.clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return server


def same(first, second):
    states = first.state_dict(), second.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][name], states[1][name]) for name in states[0]
    )


@pytest.mark.slow
def test_a_network_goes_up_and_comes_back(hub):
    torch.manual_seed(0)
    model = CapsNet(CONFIG).eval()
    address = model.push_to_hub("alice/digits", token=fake.TOKEN)
    assert address == f"{hub.address}/alice/digits"
    files = hub.repositories["alice/digits"]["main"]
    assert set(files) == {"config.json", "model.safetensors", "README.md"}
    assert 'CapsNet.from_pretrained("alice/digits")' in files["README.md"].decode()
    assert "library_name: fastcaps" in files["README.md"].decode()
    loaded = CapsNet.from_pretrained("alice/digits")
    assert same(loaded, model)
    assert sorted(hub.downloads) == ["README.md", "config.json", "model.safetensors"]
    # What is cached and hasn't changed isn't downloaded again; what has changed is.
    CapsNet.from_pretrained("alice/digits")
    assert len(hub.downloads) == 3
    files["README.md"] = b"my own card"
    with torch.no_grad():
        model.stem.conv.weight.add_(1)
    model.push_to_hub("alice/digits", token=fake.TOKEN, message="Better")
    assert hub.repositories["alice/digits"]["main"]["README.md"] == b"my own card"
    assert same(CapsNet.from_pretrained("alice/digits"), model)
    first = fake.commit(files)
    hub.repositories["alice/digits"]["first"] = files
    for revision in ("first", first):
        assert same(CapsNet.from_pretrained("alice/digits", revision=revision), loaded)
    with pytest.raises(ValueError, match=r"config.json is of a CapsNet, expected a FastCapsNet: load it with CapsNet"):
        FastCapsNet.from_pretrained("alice/digits")


def test_a_second_load_needs_no_connection(hub, monkeypatch):
    fast = fold(CapsNet(CONFIG).eval(), "uniform")
    fast.push_to_hub("alice/fast", token=fake.TOKEN, private=True)
    monkeypatch.setenv("HF_TOKEN", fake.TOKEN)
    assert same(FastCapsNet.from_pretrained("alice/fast"), fast)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before each of its attempts
    for name, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:9")):
        with monkeypatch.context() as patch:
            patch.setattr(f"huggingface_hub.constants.{name}", value)
            assert same(FastCapsNet.from_pretrained("alice/fast"), fast)
            reason = "HF_HUB_OFFLINE is set" if value is True else "ConnectError"
            with pytest.raises(
                FileNotFoundError, match=rf"^alice/other is neither .* nor cached, .* \({reason}\): check"
            ):
                FastCapsNet.from_pretrained("alice/other")


@pytest.mark.slow
def test_errors_are_one_sentence(hub, monkeypatch):
    model = CapsNet(CONFIG)
    files = {path.name: content for path, content in model.pretrained_files("").items()}
    hub.repositories |= {
        "alice/private": {"main": files},
        "alice/gated": {"main": files},
        "alice/forbidden": {"main": files},
        "alice/empty": {"main": {"notes.txt": b""}},
        "alice/half": {"main": {"config.json": files["config.json"]}},
        "alice/damaged": {"main": {**files, "model.safetensors": b"other"}},
        "alice/pickled": {"main": {"config.json": b"[]", "pytorch_model.bin": b"\x80"}},
        "alice/good": {"main": files},
    }
    hub.private, hub.gated, hub.broken = {"alice/private"}, {"alice/gated"}, {"alice/forbidden"}
    for name, kind, message in (
        ("alice/nothing", FileNotFoundError, "neither a folder here nor a public repository .* check the name"),
        ("alice/private", FileNotFoundError, "if it is private, log in with hf auth login, or set HF_TOKEN$"),
        ("alice/gated", PermissionError, "alice/gated is gated: accept its terms on its page"),
        ("alice/forbidden", PermissionError, "the Hugging Face Hub doesn't allow this for alice/forbidden: log in"),
        ("alice/empty", FileNotFoundError, "alice/empty on the Hugging Face Hub has neither config.json nor run.json"),
        ("alice/half", FileNotFoundError, "model.safetensors does not exist: expected a folder with config.json and"),
        ("alice/damaged", ValueError, "model.safetensors is damaged or belongs to another model: its SHA-256 is"),
        ("alice/pickled", ValueError, "config.json is damaged"),
    ):
        with pytest.raises(kind, match=message) as caught:
            CapsNet.from_pretrained(name)
        assert "\n" not in str(caught.value)
    assert "pytorch_model.bin" not in hub.downloads
    with pytest.raises(
        FileNotFoundError, match="alice/good has no revision 'old': expected a branch, a tag or a commit"
    ):
        CapsNet.from_pretrained("alice/good", revision="old")
    with pytest.raises(
        PermissionError, match="doesn't allow this for bob/new: log in with hf auth login, or set HF_TOK"
    ):
        model.push_to_hub("bob/new")
    with pytest.raises(FileNotFoundError, match=r"a/b\.\.c is no folder here and no name of a repository"):
        CapsNet.from_pretrained("a/b..c")
    hub.downloads.clear()
    monkeypatch.setitem(hub.sizes, "model.safetensors", 2**31)
    with pytest.raises(ValueError, match="has .* bytes, expected at most 2,147,483,648"):
        CapsNet.from_pretrained("alice/good")
    assert not hub.downloads
    with pytest.raises(ValueError, match="'new' is no name of a repository: expected one such as user/name"):
        model.push_to_hub("new")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"can't be used for bob/new \(ConnectError\): try again later"):
        model.push_to_hub("bob/new", token=fake.TOKEN)


def test_folders_go_before_repositories(hub, tmp_path, monkeypatch):
    for place in ("alice/digits", "work/model"):
        CapsNet(CONFIG).save_pretrained(tmp_path / place)
    monkeypatch.chdir(tmp_path)
    assert CapsNet.from_pretrained("alice/digits").config == CONFIG
    with pytest.raises(FileNotFoundError, match=r"alice/digitz/config.json does not exist.*did you mean alice/digits"):
        CapsNet.from_pretrained("alice/digitz")
    for name in ("alice/digits", "mnist"):
        with pytest.raises(ValueError, match=f"revision='main' was given for {name}, expected a repository on the Hub"):
            CapsNet.from_pretrained(name, revision="main")


@pytest.mark.slow
def test_a_run_is_used_by_its_name(hub, tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.push_to_hub("alice/run", token=fake.TOKEN)
    files = hub.repositories["alice/run"]["main"]
    assert {"run.json", "master.safetensors", "model/model.safetensors", "fast/config.json"} <= set(files)
    assert not {"metrics.jsonl", "expected.safetensors"} & set(files)
    assert 'FastCapsNet.from_pretrained("alice/run")' in files["README.md"].decode()
    assert same(FastCapsNet.from_pretrained("alice/run"), FastCapsNet.from_pretrained(RUN))
    Image.new("L", (28, 28)).save("picture.png")
    said = json.loads(invoke("predict", "alice/run", "picture.png", "--json").stdout)
    assert len(said["images"]) == 1
    assert open_model("alice/run", threads=1).name == "run"
    refused = invoke("accumulate", "alice/run", code=1).stderr
    assert "alice/run was loaded from the Hub and is not written to: give another place as --out" in refused
    unknown = invoke("predict", "alice/nothing", "picture.png", code=1).stderr
    assert "alice/nothing is neither a folder here nor a public repository" in unknown
    # The card of the run is that of the repository, unless it has one.
    (tmp_path / "run" / "README.md").write_text("The card of the run")
    for name, expected in (("alice/run", files["README.md"]), ("alice/other", b"The card of the run")):
        run.push_to_hub(name, token=fake.TOKEN)
        assert hub.repositories[name]["main"]["README.md"] == expected


def test_there_is_one_network_in_a_repository(hub, tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    Run.open(tmp_path / "run").push_to_hub("alice/run", token=fake.TOKEN)
    hub.repositories["alice/run"]["main"]["notes.txt"] = b"mine"
    CapsNet(CONFIG).push_to_hub("alice/run", token=fake.TOKEN)
    files = {"config.json", "model.safetensors", "README.md", "notes.txt"}
    assert set(hub.repositories["alice/run"]["main"]) == files


def test_without_the_extra(tmp_path, monkeypatch, missing_package):
    monkeypatch.chdir(tmp_path)
    missing_package("huggingface_hub")
    needed = "needs huggingface_hub, not installed here: python -m pip install"
    with pytest.raises(FileNotFoundError, match=f"^alice/digits is no folder here; .* {needed}"):
        bundled.resolve("alice/digits")
    with pytest.raises(ModuleNotFoundError, match=needed):
        CapsNet(CONFIG).push_to_hub("alice/digits")
