"""The page in a real browser: hands that draw, and what must never happen there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.pages import CHROMIUM

# Strokes in a drawing area of 280×280.
STROKES = {
    "7": [[(70, 60), (215, 60), (120, 230)]],
    "1": [[(145, 40), (140, 240)]],
    "0": [[(140, 40), (90, 70), (75, 140), (90, 210), (140, 240), (190, 210), (205, 140), (190, 70), (140, 40)]],
}
AXE = Path(__file__).parent.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def opened(
    address: str,
    *,
    width: int = 1280,
    scheme: Any = "light",
    expected: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Iterator[Any]:
    """The page at an address; it may load nothing from elsewhere, say nothing, and never scroll sideways.

    Args:
        address: of the page.
        width: of the window.
        scheme: light or dark.
        expected: parts of messages on the console that belong to the test.
        others: addresses that the page may load from, beside its own origin.
    """
    from playwright.sync_api import sync_playwright

    requests: list[str] = []
    troubles: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=False, has_touch=width < 500
        )
        page.set_default_timeout(60_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        yield page
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        browser.close()
    unexpected = [text for text in troubles if not any(words in text for words in expected)]
    assert not unexpected, unexpected
    origin = address[: address.index("/", len("http://")) + 1]
    assert all(url.startswith((origin, "data:", "blob:", *others)) for url in requests)
    assert overflow == 0


def draw(page: Any, digit: str) -> None:
    """Draw a digit with the mouse."""
    page.click("#clear")
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    for stroke in STROKES[digit]:
        points = [(box["x"] + x, box["y"] + y) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for x, y in points[1:]:
            page.mouse.move(x, y, steps=6)
        page.mouse.up()


def accessibility_problems(page: Any) -> list[str]:
    """What axe-core calls serious or critical; the rest of the test is skipped where it is not installed."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in web/")
    page.evaluate(AXE.read_text())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {violation['nodes'][0]['html'][:120]}"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
