"""The live page in a real browser: drawing, uploading, what needs PyTorch, and who can use it."""

import os

import pytest
from tests.pages import needs_browser
from tests.runtime.conftest import exported, networks, small_config
from tests.serving.browser import accessibility_problems, draw, opened

from fastcaps.serving import Settings, background, open_model


def answer(page, words):
    """Wait until the answer has some words, and return it."""
    answer = page.locator("#answer", has_text=words)
    answer.wait_for()
    return answer.inner_text()


def drawn(page):
    """Return the reconstruction as it is shown."""
    return page.evaluate("document.getElementById('drawn').toDataURL()")


@pytest.mark.slow
@needs_browser
def test_drawing_and_uploading_without_pytorch(address, digits, tmp_path):
    refused = "the server responded with a status of 422"
    with opened(address + "/", width=390, scheme="dark", expected=(refused,)) as page:
        page.locator("#examples button").nth(19).wait_for()
        for digit in "710":
            draw(page, digit)
            assert answer(page, f"Fast routing: {digit} (").startswith(f"Fast routing: {digit} (0.")
        assert page.inner_text("#lengths tr.winner th") == "0"
        assert "28×28 pixels, not inverted" in page.inner_text("#seen-text")
        assert "need PyTorch on the server" in page.inner_text("#missing")
        assert not page.is_visible("#coefficients")
        (tmp_path / "seven.png").write_bytes(digits[0])
        (tmp_path / "broken.png").write_bytes(digits[0][:60])
        page.set_input_files("#upload", tmp_path / "seven.png")
        answer(page, "Fast routing: 7 (0.91), then 9")
        page.set_input_files("#upload", tmp_path / "broken.png")
        error = page.locator("#error:visible")
        error.wait_for()
        assert "can't be decoded as an image" in error.inner_text()
        page.locator("#examples button").nth(4).press("Enter")
        answer(page, "Fast routing: 2 (")
        error.wait_for(state="hidden")
        assert accessibility_problems(page) == []


@pytest.mark.slow
@needs_browser
def test_a_key_is_asked_for(mnist):
    with (
        background({"mnist": mnist}, Settings(api_key="secret")) as address,
        opened(address + "/", expected=("status of 401",)) as page,
    ):
        page.fill("#key-value", "secret")
        page.press("#key-value", "Enter")
        page.locator("#examples button").first.click()
        answer(page, "Fast routing: 0 (")
        assert accessibility_problems(page) == []
        page.goto(address + "/docs")
        page.locator("section h2", has_text="POST /v1/models/{name}/predict").wait_for()
        assert accessibility_problems(page) == []


@pytest.mark.slow
@needs_browser
def test_names_of_classes_are_text(tmp_path):
    nasty = "<img src=x onerror=alert(1)>"
    network = networks(small_config(class_names=(nasty, "b", "c")))["fast"]
    exported(network, tmp_path / "small.onnx")
    with background({"small": open_model(str(tmp_path / "small.onnx"))}) as address, opened(address + "/") as page:
        draw(page, "1")
        answer(page, "Fast routing: ")
        assert page.inner_text("#lengths tbody tr:first-child th") == nasty
        assert page.locator("#lengths img").count() == 0


@pytest.mark.slow
@needs_browser
def test_dynamic_beside_fast_sliders_and_coefficients():
    with background({"mnist": open_model("mnist")}) as address, opened(address + "/", expected=("of 503",)) as page:
        page.locator("#examples button").first.wait_for()
        for digit in "710":
            draw(page, digit)
            assert f"Fast routing: {digit} (" in answer(page, f"Dynamic routing: {digit} (")
        assert page.locator("#sliders input").count() == 16
        page.locator("#examples button").nth(2).click()
        answer(page, "Dynamic routing: 1 (")
        before = drawn(page)
        page.locator("#sliders input").first.press("End")
        for _ in range(600):
            if drawn(page) != before:
                break
            page.wait_for_timeout(100)
        assert drawn(page) != before
        page.click("#reset")
        assert drawn(page) == before
        assert "iteration 3 of 3" in page.inner_text("#loop-text")
        page.locator("#iteration").press("Home")
        assert page.inner_text("#loop-text") == "Loop, iteration 1 of 3: 1.00 everywhere"
        page.click("#play")
        page.locator("#loop-text", has_text="iteration 2 of 3").wait_for()
        page.click("#play")
        assert "Master coefficients, no loop: " in page.inner_text("#master-text")
        assert accessibility_problems(page) == []


@pytest.mark.slow
@needs_browser
@pytest.mark.skipif("FASTCAPS_DATA" not in os.environ, reason="the files of cifar10 are not in $FASTCAPS_DATA")
def test_pictures_of_cifar10_are_picked():
    models = {"mnist": open_model("mnist", pytorch=False), "cifar10": open_model("cifar10")}
    with background(models) as address, opened(address + "/", expected=("of 503",)) as page:
        page.locator("#examples button").first.click()
        answer(page, "Fast routing: 0 (")
        page.select_option("#model", "cifar10")
        answer(page, "No picture yet.")
        ship = page.get_by_role("button", name="Test image: ship").first
        ship.wait_for()
        assert not page.is_visible("#pad")
        ship.click()
        assert "Dynamic routing: " in answer(page, "Dynamic routing: ")
        assert "24×24 pixels" in page.inner_text("#seen-text")
