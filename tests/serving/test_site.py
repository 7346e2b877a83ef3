"""The static page: the network in the browser answers as the server does, with nothing behind it."""

import base64
import http.server
import io
import json
import re
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.pages import needs_browser
from tests.serving.browser import accessibility_problems, draw, opened
from tests.serving.conftest import PREDICT, png, request
from typer.testing import CliRunner

from fastcaps.cli import app
from fastcaps.serving.site import BINARY, INTEGRITY, MODULE, VERSION, integrity, write_site

ROOT = Path(__file__).parent.parent.parent
DIST = ROOT / "web" / "node_modules" / "onnxruntime-web" / "dist"
needs_runtime = pytest.mark.skipif(not DIST.is_dir(), reason="onnxruntime-web is not installed: npm ci in web/")


class Files(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def end_headers(self):
        self.send_header("access-control-allow-origin", "*")
        super().end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def hosted(folder):
    """A static host."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def answer(page, words):
    page.locator("#answer", has_text=words).wait_for()


def shown(page):
    """Return what the network sees, and the lengths, as the page has them."""
    pixels = page.evaluate(
        "(() => {const c = document.getElementById('seen');"
        "return Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)})()"
    )
    lengths = [float(text) for text in page.locator("#lengths td").all_inner_texts()]
    return np.array(pixels, np.uint8).reshape(28, 28, 4)[..., 0], lengths


@pytest.mark.slow
@needs_runtime
@needs_browser
def test_it_answers_as_the_server_does(tmp_path, address, digits, serial):
    write_site("mnist", tmp_path / "site", runtime=DIST)
    photograph = Image.fromarray(np.asarray(Image.open(io.BytesIO(digits[0])))).resize((201, 150))
    pictures = {"seven.png": digits[0], "paper.png": png(255 - np.asarray(photograph)), "broken.png": digits[0][:60]}
    for name, content in pictures.items():
        (tmp_path / name).write_bytes(content)
    with hosted(tmp_path / "site") as site, opened(site, width=390, scheme="dark") as page:
        answer(page, "No picture yet.")
        for digit in "710":
            draw(page, digit)
            answer(page, f"Fast routing: {digit} (")
        for name in ("seven.png", "paper.png"):
            page.set_input_files("#upload", tmp_path / name)
            swapped = "light and dark swapped" if name == "paper.png" else "not inverted"
            page.locator("#seen-text", has_text=swapped).wait_for()
            page.wait_for_timeout(500)
            pixels, lengths = shown(page)
            [image] = request(address, "POST", PREDICT + "?pixels=yes", pictures[name]).json["images"]
            theirs = np.frombuffer(base64.b64decode(image["input"]["pixels"]), np.uint8)
            assert np.abs(pixels.astype(int) - theirs.reshape(28, 28)).max() <= 2
            assert lengths == pytest.approx(image["fast"]["lengths"], abs=0.02)
        page.set_input_files("#upload", tmp_path / "broken.png")
        page.locator("#error:visible", has_text="The picture is damaged").wait_for()
        page.locator("#examples button").nth(4).press("Enter")
        answer(page, "Fast routing: 2 (")
        assert accessibility_problems(page) == []


@pytest.mark.slow
@needs_runtime
@needs_browser
def test_linked_files_are_checked_by_the_browser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for name in (MODULE, BINARY):
        (tmp_path / "elsewhere" / name).write_bytes((DIST / name).read_bytes())
    with hosted(tmp_path / "elsewhere") as elsewhere, hosted(tmp_path / "site") as site:
        write_site("mnist", tmp_path / "site", linked=elsewhere)
        with opened(site, others=(elsewhere,)) as page:
            answer(page, "No picture yet.")
        with (tmp_path / "elsewhere" / BINARY).open("ab") as file:
            file.write(b" ")
        with opened(site, others=(elsewhere,), expected=("valid digest", "integrity checks failed")) as page:
            page.locator("#error:visible", has_text="The network could not be loaded").wait_for()


def test_it_is_linked_with_hashes_where_there_is_no_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["page", "mnist", "--out", "site", "--json"])
    assert result.exit_code == 0, result.stderr
    about = json.loads(result.stdout)
    assert about["runtime"] == f"https://cdn.jsdelivr.net/npm/onnxruntime-web@{VERSION}/dist/"
    assert about["network_bytes"] == (tmp_path / "site" / "network.onnx").stat().st_size
    page = (tmp_path / "site" / "index.html").read_text()
    assert f'src="{about["runtime"]}{MODULE}" integrity="{INTEGRITY[MODULE]}" crossorigin="anonymous"' in page
    assert not re.search(r"\$\w", page)
    network = json.loads((tmp_path / "site" / "network.json").read_text())
    assert network["runtime"]["integrity"] == INTEGRITY[BINARY]
    assert network["facts"]["Accuracy"] == "99.43% of 10,000 test images"


def test_the_version_is_the_pinned_one():
    assert json.loads((ROOT / "web" / "package.json").read_text())["dependencies"]["onnxruntime-web"] == VERSION
    for name in (MODULE, BINARY) if DIST.is_dir() else ():
        assert integrity((DIST / name).read_bytes()) == INTEGRITY[name]


def test_what_can_not_be_a_page(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="cifar10 has no exported file for the browser: make one with workflows"
    ):
        write_site("cifar10", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=f"has no {BINARY}: expected the folder dist of onnxruntime-web {VERSION}"
    ):
        write_site("mnist", tmp_path, runtime=tmp_path)
    for name in (MODULE, BINARY):
        (tmp_path / name).write_bytes(b"another version")
    with pytest.raises(ValueError, match=f"is not of onnxruntime-web {VERSION}: run npm ci in web/"):
        write_site("mnist", tmp_path / "site", runtime=tmp_path)
    assert not (tmp_path / "site").exists()
