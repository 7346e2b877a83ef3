"""A page in a real browser, and what went wrong with it there; figures that are not rendered."""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


def save_nothing(figure: Any, place: Any, **options: Any) -> None:
    """Stand in for ``Figure.savefig``, which takes most of the time of a report: write an empty picture."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="72pt"><defs></defs></svg>'
    svg += f"<!-- {options.get('format')} -->"
    if isinstance(place, io.StringIO):
        place.write(svg)
    elif isinstance(place, io.BytesIO):
        place.write(svg.encode())
    else:
        Path(place).write_text(svg)


@contextmanager
def opened(file: Path, width: int, scheme: Any) -> Iterator[Any]:
    """The page of a file; it may load nothing else, say nothing, and never scroll sideways as a whole."""
    from playwright.sync_api import sync_playwright

    requests: list[str] = []
    troubles: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: troubles.append(f"failed: {request.url[:80]}"))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(file.as_uri())
        yield page
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert troubles == []
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    assert [url for url in requests if url.startswith("file")] == [file.as_uri()]
    assert overflow == 0
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
