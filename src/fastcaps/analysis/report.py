"""A run as one HTML page that opens from disk: with inlined figures, and only numbers from ``analysis.json``."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fastcaps._page import Traced, render
from fastcaps.analysis.report_data import ReportData
from fastcaps.analysis.results import MEANINGS, Evaluation

# Variants of routing in the first chart.
CHARTED = ("dynamic", "fast", "uniform")

# On a narrow screen a figure shrinks to this fraction of its width, then it scrolls: text would get too small.
_SMALLEST = 0.84
# Width of a figure on the narrowest screen, in pixels.
_NARROW = 350


@dataclass(frozen=True)
class _Picture:
    """An SVG for the page, with its size in pixels; a wide one scrolls on a phone."""

    data: str
    width: int
    height: int
    smallest: int

    @property
    def is_wide(self) -> bool:
        return self.smallest > _NARROW

    @classmethod
    def from_svg(cls, svg: bytes) -> Self:
        size = re.search(rb'width="([0-9.]+)pt" height="([0-9.]+)pt"', svg)
        if size is None:
            raise ValueError(f"the picture begins with {svg[:20]!r}, expected an SVG of `page_svg`")
        width, height = (round(float(side) * 96 / 72) for side in size.groups())
        return cls(base64.b64encode(svg).decode(), width, height, round(_SMALLEST * width))


@dataclass(frozen=True)
class _Chart:
    """Positions of the marks in the first chart, in percent of its width: accuracies with intervals, and speeds.

    Attributes:
        low: accuracy at the left edge; the right edge is 1.
        fastest: images per second at the right edge; 0 where speeds were not measured.
    """

    low: float
    fastest: float

    @classmethod
    def of(cls, evaluation: Evaluation) -> Self:
        low = min(evaluation.variants[name].interval[0] for name in CHARTED)
        speeds = [variant.images_per_second for variant in (evaluation.dynamic, evaluation.fast)]
        return cls(max(0.0, 1 - 1.1 * (1 - low)), max(speed or 0 for speed in speeds) if all(speeds) else 0.0)

    def accuracy(self, value: float) -> float:
        return 100 * (value - self.low) / (1 - self.low)

    def speed(self, value: float) -> float:
        return 100 * value / self.fastest


def report_page(report: ReportData, pictures: Mapping[str, bytes]) -> str:
    """Return the page of a report.

    Args:
        report: its numbers; run and settings must not be None.
        pictures: SVG per figure, by name, as `fastcaps.analysis.figures.page_svg` gives it.
    """
    if report.run is None or report.settings is None:
        raise ValueError("the report has no run, expected run and settings: set them with dataclasses.replace")
    return render(
        "report.html.j2",
        report=Traced(report),
        raw=report,
        summary=report.evaluation.verdict(),
        chart=_Chart.of(report.evaluation),
        charted=CHARTED,
        meanings=MEANINGS,
        pictures={name: _Picture.from_svg(svg) for name, svg in pictures.items()},
    )
