"""A run as one HTML page that opens from disk: every figure inlined, every number one of ``analysis.json``."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from fastcaps._page import Traced, render
from fastcaps.analysis.report_data import ReportData
from fastcaps.analysis.results import MEANINGS

# Pixels of a figure per pixel of the page: figures are drawn at 200 to the inch, a page has 96.
_SCALE = 200 / 96
# On a narrow screen a figure shrinks to fit; in one that is wider than this, texts would get too small: it scrolls.
_WIDE = 600


@dataclass(frozen=True)
class _Picture:
    """A PNG for the page, with its size in pixels of the page."""

    data: str
    width: int
    height: int
    is_wide: bool

    @classmethod
    def from_png(cls, png: bytes) -> Self:
        width, height = (round(side / _SCALE) for side in struct.unpack(">II", png[16:24]))
        return cls(base64.b64encode(png).decode(), width, height, width > _WIDE)


def report_page(report: ReportData, pictures: Mapping[str, bytes]) -> str:
    """Return the page of a report.

    Args:
        report: its numbers; run and settings must be known.
        pictures: PNG per figure, by name.
    """
    if report.run is None or report.settings is None:
        raise ValueError("the report says of no run, expected run and settings: set them with dataclasses.replace")
    return render(
        "report.html.j2",
        report=Traced(report),
        verdict=report.evaluation.verdict(),
        network=report.network,
        meanings=MEANINGS,
        pictures={name: _Picture.from_png(png) for name, png in pictures.items()},
    )
