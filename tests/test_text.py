"""Hostile names: harmless in terminals, figures and pages."""

import io
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import small_config

from fastcaps import CapsNet, accumulate
from fastcaps._result import Table
from fastcaps._text import figure_label, printable
from fastcaps.analysis import figures
from fastcaps.analysis.capsules import Lengths
from fastcaps.cli._common import print_columns
from fastcaps.nn import CapsNetConfig

NAMES = [
    "$x^{",
    "}_${",
    r"\$\frac{1}{0}$ %",
    "<script>alert('&\"')</script>",
    "\x1b[31mred\x1b[0m\x07",
    "two\nlines\tand\ra return",
    "right \u202e to left \u2066",
    "a | b",
    "[bold]rich[/bold]",
    "x" * 5000,
    "",
    "日本語 é",
]
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2066\u2028]")


def drawings(names: list[str]) -> dict[str, Any]:
    """Every figure that shows names of classes."""
    j, rng = len(names), np.random.default_rng(0)
    labels = np.arange(j)
    square, images = rng.random((j, j)).astype(np.float32), rng.random((j, 1, 4, 4))
    lengths = Lengths(dynamic=square, fast=square.T.copy(), labels=labels)
    counts = rng.integers(0, 9, (j, j))
    return {
        "confusion": figures.confusion_figure({"dynamic $": counts}, names),
        "images": figures.image_correlations_figure(square, labels, names),
        "classes": figures.class_correlations_figure(square, names, symmetric=True),
        "tuning": figures.tuning_figure(square, square, names),
        "matrix": figures.master_matrix_figure(rng.random((8, j)), names),
        "positions": figures.position_figure(rng.random((j, 2, 2, 2)), images, names),
        "types": figures.types_figure(rng.random((j, 2, 2, 2)), names),
        "examples": figures.disagreement_figure(images, lengths, names),
        "histogram": figures.histogram_figure({"runs/$x^{": (np.linspace(0, 1, 5), rng.random((2, 4)))}),
        "variation": figures.variation_figure(rng.random((j, 3, 1, 4, 4)), names, [-1, 0, 1], "class $x^{"),
    }


@pytest.mark.slow
def test_figures_of_hostile_names() -> None:
    # What breaks mathtext, SVG, fonts and layouts, in few panels.
    names = [NAMES[0] + NAMES[1], NAMES[2] + NAMES[3] + NAMES[4], NAMES[5] + NAMES[6], NAMES[9], NAMES[10], NAMES[11]]
    for name, figure in drawings(names).items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph|constrained_layout not applied|There are no gridspecs")
            figure.savefig(buffer := io.BytesIO(), format="svg", dpi=20)
        assert buffer.getvalue().startswith(b"<?xml"), name
        assert max(figure.get_size_inches()) < 60, name


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_hostile_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(name, ["class", name], [[name, "1"], ["other", name]])
    assert not _CONTROL.search(table.to_text())
    print_columns(table)
    assert not _CONTROL.search(capsys.readouterr().out)
    assert "<script" not in table.to_html()
    lines = table.to_markdown().splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3, 3]


def test_labels() -> None:
    assert figure_label("$x") == r"\$x"
    assert len(figure_label("x" * 99)) == 60
    assert printable("a\x1b[2J\u202e\nb") == r"a\x1b[2J\u202e\nb"
    assert printable("a\nb", "\n") == "a\nb"
    assert printable("न\u200dहीं é") == "न\u200dहीं é"


def test_images_that_are_no_numbers_are_refused() -> None:
    model = CapsNet(small_config()).eval()
    images = torch.rand(5, 1, 12, 12)
    before = model.predict(images)
    fast = accumulate_and_fold(model)
    for value in (torch.nan, torch.inf, -torch.inf):
        bad = images.clone()
        bad[3, 0, 5, 5] = value
        for network in (model, fast):
            with pytest.raises(
                ValueError, match="image 3 of the batch has pixels that are not finite: expected numbers"
            ):
                network.predict(bad)
    assert torch.equal(model.predict(images), before)
    for shape in ((), (12,), (1, 1, 1, 12, 12)):
        for network in (model, fast):
            with pytest.raises(ValueError, match=r"images have shape \(.*\), expected \(batch, 1, 12, 12\)"):
                network.predict(torch.zeros(shape))
    with pytest.raises(ValueError, match="images are ndarray, expected a tensor: torch.from_numpy converts arrays"):
        model(images.numpy())
    for iterations in ("3", 2.5, True, 0):
        with pytest.raises(ValueError, match=f"iterations is {iterations!r}, expected a whole number, at least 1"):
            model(images, iterations=iterations)
    with torch.no_grad():
        model.routing.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="image 0 of the batch gives capsules that are not finite: expected finite w"):
        model.predict(images)


def accumulate_and_fold(model: CapsNet) -> Any:
    from fastcaps import fold

    return fold(model, accumulate(model, [(torch.rand(6, 1, 12, 12), torch.arange(6) % 3)]))


def test_networks_larger_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is allocated: none of these takes time."""
    for changes, message in [
        (
            {"classes": 10**9},
            r"a network for 1,000,000,000 classes and images of 28×28×1 needs [\d,.]+ GiB: choose few",
        ),
        ({"height": 10**6, "width": 10**6}, "images of 1,000,000×1,000,000×1 needs"),
        ({"resize": (10**9, 10**9)}, "needs .* GiB: choose fewer classes"),
        ({"iterations": 10**9}, "iterations is 1,000,000,000, expected at most 1,000"),
        ({"decoder": (1,) * 1000}, "decoder has 1,000 entries, expected at most 100"),
        ({"stem_layers": ((1, 1, 1),) * 1000}, "stem_layers has 1,000 entries, expected at most 100"),
    ]:
        with pytest.raises(ValueError, match=message):
            CapsNetConfig(**changes)  # type: ignore[arg-type]
    monkeypatch.setattr("fastcaps.nn.config.free_bytes", lambda: 2**20)
    with pytest.raises(ValueError, match="needs 0.0 GiB, 0.0 GiB of memory are free: choose fewer classes"):
        CapsNet(CapsNetConfig.mnist())
    config = CapsNetConfig.cifar10()
    with torch.device("meta"):
        weights = CapsNet(config).parameters()
    assert sum(weight.numel() for weight in weights) * 4 < config.memory_bytes
