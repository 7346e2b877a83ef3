import contextlib
import dataclasses
import errno
import http.server
import io
import sys
import threading

import pytest
from tests.data import tiny

from fastcaps._download import cache_dir
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
        if how == "endless":
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(CONTENT)
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
        [file] = tiny.located(wanted(), *files.roots(mine))
        where.append(file.path)
        assert files.read([file]) == [CONTENT]
    assert where == [place / "some_set" / "file.bin" for place in (cache, shared, mine)]


def test_folders_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"data_dir is .*nowhere, which is not a folder: create it"):
        files.roots(tmp_path / "nowhere")
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"\$FASTCAPS_DATA is .*gone, which is not a folder: create it"):
        files.roots()


def test_the_cache_is_the_operating_systems_unless_chosen(monkeypatch):
    monkeypatch.delenv("FASTCAPS_CACHE")
    assert cache_dir().name == "fastcaps"


@pytest.mark.parametrize("unpacked", [True, False])
def test_a_checksum_that_does_not_match(tmp_path, unpacked):
    name = "file" if unpacked else "file.gz"
    (tmp_path / "some_set").mkdir()
    (tmp_path / "some_set" / name).write_bytes(b"other")
    file = File("file.gz", "0" * 64, "file", "1" * 64)
    actual = tiny.located(Files("some_set", (file,)), tmp_path)
    expected = ("1" if unpacked else "0") * 64
    message = rf"{name} has SHA-256 {tiny.sha256(b'other')}, expected {expected}: it is damaged or another file"
    with pytest.raises(ValueError, match=message):
        files.read(actual)


def test_download_says_what_it_does(home, cache, capsys):
    url = f"{home}/good/file.bin"
    [file] = fetch(wanted(url), cache)
    assert file.path == cache / "some_set" / "file.bin"
    assert file.path.read_bytes() == CONTENT
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
    [file] = fetch(wanted(f"{home}/{how}/file.bin", f"{home}/good/file.bin"), cache)
    assert files.read([file]) == [CONTENT]
    assert [path.name for path in file.path.parent.iterdir()] == ["file.bin"]


def test_one_error_when_all_homes_fail(home, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path))
    # A port on which nobody listens.
    urls = [f"{home}/{how}/file.bin" for how in ("wrong", "broken", "missing")] + ["http://127.0.0.1:9/file.bin"]
    with pytest.raises(FileNotFoundError) as caught:
        fetch(wanted(*urls), cache)
    assert str(caught.value) == (
        "some_set is missing and could not be downloaded: put file.bin into "
        f"{tmp_path / 'some_set'}, {cache / 'some_set'}, or into some_set of any folder given as "
        "data_dir or $FASTCAPS_DATA; "
        f"they are published at {', '.join(url.removesuffix('file.bin') for url in urls)}; "
        f"tried {urls[0]}: its checksum does not match; "
        f"{urls[1]}: ChunkedEncodingError; {urls[2]}: HTTP status 404; {urls[3]}: ConnectionError"
    )
    assert not (cache / "some_set").exists()


def test_a_failed_download_leaves_no_folder_that_it_made(home, tmp_path):
    new, old = tmp_path / "new" / "data", tmp_path / "old"
    (old / "some_set").mkdir(parents=True)
    for into in (new, old):
        with pytest.raises(FileNotFoundError, match=r"missing/file\.bin: HTTP status 404"):
            fetch(wanted(f"{home}/missing/file.bin"), into)
    assert list(tmp_path.iterdir()) == [old]
    assert (old / "some_set").is_dir()


@pytest.mark.parametrize(("where", "reason"), [("cache", "Not a directory"), ("cache/some_set", "File exists")])
def test_a_folder_that_cannot_be_made_is_no_failed_home(home, tmp_path, where, reason):
    (tmp_path / where).parent.mkdir(exist_ok=True)
    (tmp_path / where).write_text("a file")
    message = (
        rf"^{tmp_path}/cache/some_set can't be created or written to \({reason}\): free space, or give another folder"
    )
    with pytest.raises(OSError, match=message) as caught:
        fetch(wanted(f"{home}/good/file.bin"), tmp_path / "cache")
    assert "http" not in str(caught.value)
    assert (tmp_path / where).read_text() == "a file"


def test_a_folder_that_may_not_be_written_to(home, tmp_path, monkeypatch):
    def denied(**options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", denied)  # root may write to any folder
    with pytest.raises(OSError, match=r"new/some_set can't be created or written to \(Permission denied\): free space"):
        fetch(wanted(f"{home}/good/file.bin"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "Connection timed out"),
        (OSError("no certificates"), "OSError"),
    ],
)
def test_the_network_s_own_errors_are_those_of_a_home(home, cache, monkeypatch, error, reason):
    def fail(self, url, output_file, pooch):
        raise error

    monkeypatch.setattr("pooch.downloaders.HTTPDownloader.__call__", fail)
    with pytest.raises(FileNotFoundError, match=rf"tried {home}/good/file\.bin: {reason}$"):
        fetch(wanted(f"{home}/good/file.bin"), cache)


def test_a_full_disk_is_no_failed_home(home, cache, monkeypatch):
    def full(self, url, output_file, pooch):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pooch.downloaders.HTTPDownloader.__call__", full)
    message = r"some_set can't be created or written to \(No space left on device\): free space, or give another folder"
    with pytest.raises(OSError, match=message):
        fetch(wanted(f"{home}/good/file.bin", f"{home}/good/again/file.bin"), cache)
    assert not (cache / "some_set").exists()


def _no_good(items):
    raise ValueError(f"{items[0].title} is no good: it is damaged; delete it and download it again")


def test_what_has_no_published_hash_gets_its_name_only_when_its_form_is_right(home, cache):
    seen = []

    def check(file):
        seen.append([(item.file.name, item.path.read_bytes() == CONTENT, item.packed) for item in file])
        assert not (cache / "some_set" / file[0].file.name).exists()
        if len(seen) == 1:
            _no_good(file)

    urls = f"{home}/first/file.bin", f"{home}/second/file.bin"
    plain = Files("some_set", (File("file.bin", urls=urls),))
    [file] = files.fetch(plain, files.roots(), cache, check)  # the second home's
    assert file.path.read_bytes() == CONTENT
    assert seen == [[("file.bin", True, False)]] * 2

    archive = Archive("all.zip", "all", urls=urls[:1])
    packed = Files("other_set", (File("a"), File("b")), archive)
    with pytest.raises(FileNotFoundError) as caught:
        files.fetch(packed, files.roots(), cache, _no_good)
    assert str(caught.value).endswith(f"; tried {urls[0]}: a in all.zip is no good")
    assert not (cache / "other_set").exists()
    files.fetch(packed, files.roots(), cache, check)
    assert seen[2] == [("a", True, True), ("b", True, True)]


def test_what_has_a_published_hash_needs_no_other_check(home, cache):
    [file] = files.fetch(wanted(f"{home}/good/file.bin"), files.roots(), cache, _no_good)
    assert file.path.read_bytes() == CONTENT


def test_no_home_is_known(cache):
    with pytest.raises(FileNotFoundError, match=r"put file\.bin into .* published at no known address; tried nothing"):
        fetch(wanted(), cache)


def test_an_archive_is_downloaded_whole(home, cache):
    archive = Archive("all.bin", "all", f"sha256:{tiny.sha256(CONTENT)}", urls=(f"{home}/good/all.bin",))
    file = fetch(Files("some_set", (File("a"), File("b")), archive), cache)
    assert [(item.file.name, item.path, item.packed) for item in file] == [
        (name, cache / "some_set" / "all.bin", True) for name in "ab"
    ]
    broken = dataclasses.replace(archive, name="b.bin", digest="md5:" + "0" * 32)
    with pytest.raises(FileNotFoundError, match=r"put c \(or b\.bin\) into .* its checksum does not match"):
        fetch(Files("other_set", (File("c"),), broken), cache)


def test_an_interrupted_download_leaves_nothing(home, cache, monkeypatch):
    def interrupt(self, count):
        raise KeyboardInterrupt

    url = f"{home}/good/file.bin"
    with monkeypatch.context() as patch:
        patch.setattr("fastcaps._download.Progress.update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(wanted(url), cache)
    assert not (cache / "some_set").exists()
    assert files.locate(wanted(url), [cache]) == [None]
    assert files.read(fetch(wanted(url), cache)) == [CONTENT]


def test_an_endless_download_is_stopped(home, cache):
    with pytest.raises(FileNotFoundError, match=rf"endless/file\.bin: it has more than {len(CONTENT):,} bytes$"):
        fetch(wanted(f"{home}/endless/file.bin"), cache)
    assert not [path for path in cache.rglob("*") if path.is_file()]
