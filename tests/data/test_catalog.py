import dataclasses
import http.server
import threading

import numpy as np
import pytest
from tests.data import tiny

from fastcaps.data import amat, available, download, load
from fastcaps.data.registry import SETS

PAGE = b"<html><title>We have moved</title></html>"


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A data folder with a tiny MNIST, from which a tiny rotated one can be made."""
    monkeypatch.setitem(SETS, "mnist", tiny.write_idx_set(tmp_path / "data"))
    monkeypatch.setitem(SETS, "rotated_mnist", dataclasses.replace(SETS["rotated_mnist"], train=30, test=40))
    return tmp_path / "data"


@pytest.fixture
def home(mnist, monkeypatch):
    """What the home of the files of 2007 gives: change ``home.content``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.content)))
            self.end_headers()
            self.wfile.write(server.content)

        def log_message(self, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        content = b""
        url = ""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}/mnist_rotation_new.zip"
        entry = SETS["rotated_mnist"]
        assert entry.files is not None
        assert entry.files.archive is not None
        archive = dataclasses.replace(entry.files.archive, urls=(server.url,))
        files = dataclasses.replace(entry.files, archive=archive)
        monkeypatch.setitem(SETS, "rotated_mnist", dataclasses.replace(entry, files=files))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def zipped(train=30, test=40):
    random = np.random.default_rng(0)
    parts = [tiny.amat_bytes(random.random((count, 28, 28)), np.arange(count) % 10) for count in (train, test)]
    names = [file.name for file in tiny.files_of(SETS["rotated_mnist"])]
    return tiny.zip_bytes(dict(zip(names, parts, strict=True)))


def rotated(**options):
    return next(entry for entry in available(**options).sets if entry.name == "rotated_mnist")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: PAGE, r"mnist_rotation_new\.zip can't be unpacked \(File is not a zip file\)"),
        (
            lambda: zipped(train=29),
            r"mnist_all_\w+_train_valid\.amat in mnist_rotation_new\.zip has 29 images, expected 30",
        ),
        (
            lambda: tiny.with_password(zipped()),
            r"mnist_rotation_new\.zip can't be unpacked \(File '.*\.amat' is encrypted, password required .*\).*",
        ),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_what_is_not_the_original_is_not_kept(home, mnist, cache, tmp_path, content, reason, named):
    home.content = content()
    target = tmp_path / "new" if named else None
    with pytest.raises(FileNotFoundError, match=rf"^rotated_mnist is missing .*; tried {home.url}: {reason}.*$"):
        download("rotated_mnist", data_dir=target, original=True)
    assert not (tmp_path / "new").exists()
    assert not list(cache.iterdir())
    assert load("rotated_mnist", data_dir=mnist).generated


def test_the_original_is_downloaded_and_verified_once(home, cache, tmp_path, monkeypatch):
    home.content = zipped()
    calls = []
    parse = amat.load

    def counted(entry, files):
        calls.append(files[0].path)
        return parse(entry, files)

    monkeypatch.setattr(amat, "load", counted)
    [state] = download("rotated_mnist", data_dir=tmp_path / "new", original=True).sets
    assert (state.available, state.where) == (True, str(tmp_path / "new" / "rotated_mnist"))
    assert len(calls) == 1
    assert not load("rotated_mnist", data_dir=tmp_path / "new").generated
    assert not list(cache.iterdir())
    path = tmp_path / "new" / "rotated_mnist" / "mnist_rotation_new.zip"
    path.write_bytes(PAGE)  # what is there is verified, too
    with pytest.raises(ValueError, match=rf"{path} can't be unpacked \(File is not a zip file\): it is damaged"):
        download("rotated_mnist", data_dir=tmp_path / "new", original=True)


def test_a_loose_file_beside_the_archive_is_verified_too(home, cache):
    home.content = zipped()
    (cache / "rotated_mnist").mkdir()
    (cache / "rotated_mnist" / tiny.files_of(SETS["rotated_mnist"])[1].name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"float_test\.amat is empty: download it again"):
        download("rotated_mnist", original=True)


def test_images_without_their_document_are_not_available(mnist, cache):
    (cache / "generated").mkdir()
    lone = cache / "generated" / "rotated_mnist-0123456789abcdef.safetensors"
    lone.write_bytes(b"x")
    assert (rotated().available, rotated().bytes, rotated().where) == (False, None, "")
    download("rotated_mnist", data_dir=mnist)
    [whole] = (path for path in lone.parent.glob("*.safetensors") if path != lone)
    assert (rotated().available, rotated().bytes) == (True, whole.stat().st_size)


def test_what_is_generated_already_needs_no_source(mnist, cache):
    download("rotated_mnist", data_dir=mnist)
    [state] = download("rotated_mnist").sets  # there is no MNIST now, and nowhere to get it from
    assert (state.available, state.where) == (True, "generated from mnist")
    assert [path.name for path in cache.iterdir()] == ["generated"]


def test_what_a_set_is_generated_from_is_downloaded_to_the_named_folder(home, mnist, cache, tmp_path, monkeypatch):
    entry = SETS["mnist"]
    home.content = (mnist / "mnist" / tiny.files_of(entry)[3].name).read_bytes()
    assert entry.files is not None
    served = tuple(dataclasses.replace(file, urls=(home.url,)) for file in entry.files.files)
    monkeypatch.setitem(SETS, "mnist", dataclasses.replace(entry, files=dataclasses.replace(entry.files, files=served)))
    monkeypatch.setenv("FASTCAPS_DATA", str(mnist))
    (mnist / "mnist" / served[3].name).unlink()
    download("rotated_mnist", data_dir=tmp_path / "new")
    assert [path.name for path in (tmp_path / "new" / "mnist").iterdir()] == [served[3].name]
    assert [path.name for path in cache.iterdir()] == ["generated"]
