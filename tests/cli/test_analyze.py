"""``fastcaps analyze`` on a tiny run: what it writes, what it uses again, and the page in a real browser."""

import io
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.commands import invoke
from tests.pages import needs_browser, opened

FIGURES = {
    *("architecture", "image_correlations", "class_correlations", "coefficients", "procedure", "master_matrix"),
    *("positions", "types", "master_correlations", "examples", "tuning", "confusion"),
}
# Those that may show nothing: no two images change class, the decoder draws all alike.
SOME = {"disagreements", "confusion", "positions", "dimensions", "strongest_dimensions"}


def train(images: Path, out: Path, *options: str) -> Path:
    invoke(
        *("train", "--data", images, "--out", out, "--epochs", 3, "--batch-size", 4, "--warmup", 2, "--threads", 1),
        *("--set", "stem_channels=8", "--set", "capsule_types=2", "--set", "decoder=[16]"),
        *("--set", "stem_kernel=5", "--set", "primary_kernel=5", *options),
    )
    invoke("accumulate", out)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A Max-Min and a softmax run on three classes of 20×16 color images; HTML and mathtext would misread one name."""
    folder = tmp_path_factory.mktemp("analyze")
    random = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 5)):
        for number, name in enumerate(("apple", "leaf & <stalk> $_{", "sky")):
            place = folder / "photos" / part / name
            place.mkdir(parents=True)
            for k in range(count):
                pixels = random.integers(0, 120, (20, 16, 3))
                pixels[..., number] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{k}.png")
    return (
        train(folder / "photos", folder / "run"),
        train(folder / "photos", folder / "softmax", "--normalization", "softmax"),
    )


@pytest.fixture(scope="module")
def report(runs):
    """The report of the Max-Min run beside the softmax run."""
    invoke("analyze", runs[0], "--compare", runs[1])
    return runs[0] / "report"


def found_at(numbers: Any, path: str) -> Any:
    for step in path.split("/"):
        numbers = numbers[int(step)] if isinstance(numbers, list) else numbers[step]
    return numbers


def assert_numbers(shown: list[tuple[str, str, str, str]], numbers: dict[str, Any]) -> None:
    """Numbers on a page, as value, path, format and text, are those of ``analysis.json``."""
    assert len(shown) > 60
    for value, path, form, text in shown:
        expected = found_at(numbers, path)
        assert float(value) == expected, path
        assert text == format(expected, form).replace("-", "−"), path


class Numbers(HTMLParser):
    """Collects the data elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[list[str]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "data":
            attributes = dict(attrs)
            self.elements.append(
                [attributes["value"] or "", attributes["data-path"] or "", attributes["data-format"] or "", ""]
            )
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "data"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.elements[-1][3] += data


@pytest.mark.slow
def test_the_page_shows_the_numbers_of_the_file(report):
    numbers = json.loads((report / "analysis.json").read_text())
    page = (report / "index.html").read_text()
    parser = Numbers()
    parser.feed(page)
    assert_numbers([(value, path, form, text) for value, path, form, text in parser.elements], numbers)
    assert "leaf &amp; &lt;stalk&gt; $_{" in page
    assert "leaf & <stalk> $_{" not in page
    evaluation = json.loads((report.parent / "evaluation.json").read_text())
    assert numbers["evaluation"] == evaluation
    assert (numbers["training"]["images"], numbers["disagreements"]["test_images"]) == (24, 15)
    assert np.array(numbers["master"]["values"]).shape == (numbers["network"]["lower_capsules"], 3)
    assert numbers["compared"]["normalization"] == "softmax"
    assert numbers["compared"]["start"] == pytest.approx(1 / 3, abs=1e-6)
    assert numbers["disagreements"]["changed"] == evaluation["variants"]["fast"]["against_dynamic"]["changed"]
    assert numbers["disagreements"]["gained"] == evaluation["variants"]["fast"]["against_dynamic"]["gained"]


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_second_time_uses_what_is_still_valid(report, runs, tmp_path):
    before = json.loads((report / "analysis.json").read_text())
    run = shutil.copytree(report.parent, tmp_path / "run")
    again = invoke("analyze", run, "--compare", runs[1], "--sort-by-class", "--example", 7, "--json")
    for file in ("report/cache/training.safetensors", "report/cache/test.safetensors", "evaluation.json"):
        assert f"used again from {run / file} (same weights, images and settings)" in again.stderr
    assert "used again from" in again.stderr
    assert "training images ━" not in again.stderr
    numbers = json.loads(again.stdout)
    for same in ("class_correlations", "master_correlations", "coefficients", "compared", "tuning", "evaluation"):
        assert numbers[same] == before[same]
    assert numbers["first_images"]["labels"] == sorted(before["first_images"]["labels"])
    assert numbers["first_images"]["within"] == pytest.approx(before["first_images"]["within"], abs=1e-6)
    assert [image["test_image"] for image in numbers["examples"]["images"]] == [7]
    # Other weights, and nothing is valid any more.
    other = tmp_path / "other"
    shutil.copytree(runs[1], other)
    shutil.copytree(report, other / "report")
    shutil.copy(runs[0] / "evaluation.json", other / "evaluation.json")
    assert "used again" not in invoke("analyze", other).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_figures_as_files(report, runs, tmp_path):
    trial = ["analyze", runs[0], "--out", tmp_path, "--limit", 9]
    invoke(*trial, "--figures", "pdf", "--figures-to", tmp_path / "for paper")
    written = {path.stem: path for path in (tmp_path / "for paper").iterdir()}
    assert set(written) - SOME == FIGURES - SOME
    assert all(path.suffix == ".pdf" and path.read_text().endswith("pdf -->") for path in written.values())
    invoke(*trial, "--figures-to", tmp_path / "png")
    assert {path.name for path in (tmp_path / "png").iterdir()} == {f"{name}.png" for name in written}
    numbers = json.loads((tmp_path / "analysis.json").read_text())
    assert (numbers["training"]["images"], numbers["evaluation"]["images"], numbers["settings"]["limit"]) == (9, 9, 9)
    assert "A trial with the first" in (tmp_path / "index.html").read_text()
    assert json.loads((report.parent / "evaluation.json").read_text())["images"] == 15


@pytest.mark.slow
def test_errors(runs, tmp_path):
    shipped = invoke("analyze", "mnist", code=1).stderr
    assert shipped == "error: mnist comes with fastcaps and is not written to: give another place as --out\n"
    for options in (["--limit", 5], ["--coefficients", runs[0] / "master.safetensors"]):
        trial = invoke("analyze", runs[0], *options, code=1).stderr
        assert "made with --limit or --coefficients is not the run's own report: give a folder as --out" in trial
    wrong = invoke("analyze", runs[0], "--out", tmp_path, "--example", 15, code=1).stderr
    assert "--example 15: expected numbers of test images from 0 to 14" in wrong
    assert not (tmp_path / "index.html").exists()
    assert "gif" in invoke("analyze", runs[0], "--figures", "gif", code=2).stderr


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_in_a_real_browser(report, width, scheme):
    numbers = json.loads((report / "analysis.json").read_text())
    with opened(report / "index.html", width, scheme) as page:
        pictures = page.eval_on_selector_all(
            "img", "all => all.map(i => [i.closest('figure').id, i.complete && i.naturalWidth, i.clientWidth, i.alt])"
        )
        shown = page.eval_on_selector_all(
            "data", "all => all.map(d => [d.value, d.dataset.path, d.dataset.format, d.textContent])"
        )
        drawn = page.locator("#tuning img").screenshot()
        row = page.locator(".cards tbody tr").first.bounding_box()
        interval = page.locator(".cards td[data-label='95 % interval']").first.inner_text()
        targets = page.eval_on_selector_all("nav a", "all => all.map(a => document.querySelector(a.hash) !== null)")
    assert {name for name, *_ in pictures} - SOME == FIGURES - SOME
    for name, natural, displayed, alt in pictures:
        assert displayed > 0.8 * natural > 200, name  # texts stay readable
        assert len(alt) > 20, name
    assert_numbers(shown, numbers)
    brightness = np.asarray(Image.open(io.BytesIO(drawn)).convert("L")).mean()
    assert (brightness > 200, brightness < 70) == (scheme == "light", scheme == "dark")
    assert row["width"] <= width
    assert (row["height"] > 100) == (width == 390)  # a card instead of a row
    assert " – " in interval
    assert targets
    assert all(targets)
