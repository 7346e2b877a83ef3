import dataclasses
import http.server
import io
import sys
import threading

import pytest
from tests.data import tiny

from fastcaps.data import files
from fastcaps.data.registry import Archive, File, Files

CONTENT = bytes(range(256)) * 2000


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        how = self.path.split("/")[1]
        if how == "missing":
            self.send_error(404)
            return
        content = CONTENT[::-1] if how == "wrong" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if how == "broken" else content)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def home():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def wanted(*urls):
    return Files("some_set", (tiny.plain_file("file.bin", CONTENT, *urls),))


def fetch(wanted, cache):
    return files.fetch(wanted, files.roots(), cache)


def test_looked_for_in_the_named_folder_then_the_data_folder_then_the_cache(tmp_path, monkeypatch, cache):
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    monkeypatch.setenv("FASTCAPS_DATA", str(shared))
    where = []
    for place in (cache, shared, mine):
        (place / "some_set").mkdir(parents=True)
        (place / "some_set" / "file.bin").write_bytes(CONTENT)
        mine.mkdir(exist_ok=True)
        shared.mkdir(exist_ok=True)
        [found] = tiny.located(wanted(), *files.roots(mine))
        where.append(found.path)
        assert files.read([found]) == [CONTENT]
    assert where == [place / "some_set" / "file.bin" for place in (cache, shared, mine)]


def test_folders_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"the data folder .*nowhere is not a folder: create it"):
        files.roots(tmp_path / "nowhere")
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"\$FASTCAPS_DATA .*gone is not a folder: create it"):
        files.roots()


def test_the_cache_is_the_operating_systems_unless_chosen(monkeypatch):
    monkeypatch.delenv("FASTCAPS_CACHE")
    assert files.cache_dir().name == "fastcaps"


@pytest.mark.parametrize("unpacked", [True, False])
def test_a_checksum_that_does_not_match(tmp_path, unpacked):
    name = "file" if unpacked else "file.gz"
    (tmp_path / "some_set").mkdir()
    (tmp_path / "some_set" / name).write_bytes(b"other")
    file = File("file.gz", "0" * 64, "file", "1" * 64)
    found = tiny.located(Files("some_set", (file,)), tmp_path)
    expected = ("1" if unpacked else "0") * 64
    message = rf"{name} has SHA-256 {tiny.sha256(b'other')}, expected {expected}: it is damaged or another file"
    with pytest.raises(ValueError, match=message):
        files.read(found)


def test_download_says_what_it_does(home, cache, capsys):
    url = f"{home}/good/file.bin"
    [found] = fetch(wanted(url), cache)
    assert found.path == cache / "some_set" / "file.bin"
    assert found.path.read_bytes() == CONTENT
    assert capsys.readouterr().err == f"file.bin: downloading from {url}\nfile.bin: 512,000 bytes\n"
    fetch(wanted(url), cache)  # not again
    assert capsys.readouterr().err == ""


def test_download_shows_a_bar_on_a_terminal(home, cache, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    fetch(wanted(f"{home}/good/file.bin"), cache)
    assert "file.bin" in terminal.getvalue()
    assert "512.0/512.0 kB" in terminal.getvalue()


@pytest.mark.parametrize("how", ["wrong", "broken", "missing"])
def test_the_second_home_is_tried_when_the_first_fails(home, cache, how):
    [found] = fetch(wanted(f"{home}/{how}/file.bin", f"{home}/good/file.bin"), cache)
    assert files.read([found]) == [CONTENT]
    assert [path.name for path in found.path.parent.iterdir()] == ["file.bin"]


def test_one_error_when_all_homes_fail(home, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path))
    # A port on which nobody listens.
    urls = [f"{home}/{how}/file.bin" for how in ("wrong", "broken", "missing")] + ["http://127.0.0.1:9/file.bin"]
    with pytest.raises(FileNotFoundError) as caught:
        fetch(wanted(*urls), cache)
    assert str(caught.value) == (
        "some_set is not at hand and could not be downloaded: wanted are file.bin; "
        f"they may be put in any of {tmp_path / 'some_set'}, {cache / 'some_set'}; "
        f"they can be had from {', '.join(urls)}; tried {urls[0]}: its checksum does not match; "
        f"{urls[1]}: ChunkedEncodingError; {urls[2]}: HTTP status 404; {urls[3]}: ConnectionError"
    )
    assert not list((cache / "some_set").iterdir())


def test_no_home_is_known(cache):
    with pytest.raises(FileNotFoundError, match=r"wanted are file\.bin; .* tried nothing, no home is known"):
        fetch(wanted(), cache)


def test_an_archive_is_downloaded_whole(home, cache):
    archive = Archive("all.bin", "all", f"sha256:{tiny.sha256(CONTENT)}", urls=(f"{home}/good/all.bin",))
    found = fetch(Files("some_set", (File("a"), File("b")), archive), cache)
    assert [(item.file.name, item.path, item.packed) for item in found] == [
        (name, cache / "some_set" / "all.bin", True) for name in "ab"
    ]
    broken = dataclasses.replace(archive, name="b.bin", digest="md5:" + "0" * 32)
    with pytest.raises(FileNotFoundError, match=r"wanted are c \(or b\.bin\); .* its checksum does not match"):
        fetch(Files("other_set", (File("c"),), broken), cache)


def test_an_interrupted_download_leaves_nothing(home, cache, monkeypatch):
    def interrupt(self, count):
        raise KeyboardInterrupt

    url = f"{home}/good/file.bin"
    with monkeypatch.context() as patch:
        patch.setattr(files._Progress, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(wanted(url), cache)
    assert not list((cache / "some_set").iterdir())
    assert files.locate(wanted(url), [cache]) == [None]
    assert files.read(fetch(wanted(url), cache)) == [CONTENT]
