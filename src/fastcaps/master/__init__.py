"""Master routing coefficients: accumulated from a trained network's routing, used in its place (section 5)."""

from typing import Any

from fastcaps.functional._deprecated import warn
from fastcaps.master.accumulator import MasterAccumulator, Selection, accumulate
from fastcaps.master.coefficients import FilterReport, MasterCoefficients, Method
from fastcaps.master.filters import FILTERS, Correct, Filter, GaussianMixture, KMeans, Similarity, apply_filters
from fastcaps.master.folding import fold
from fastcaps.master.observations import Observations
from fastcaps.master.recording import Recorder, capsule_layers, record
from fastcaps.master.sweep import Sweep, sweep
from fastcaps.master.uniform import uniform_coefficients

__all__ = [
    "accumulate",
    "fold",
    "record",
    "Recorder",
    "capsule_layers",
    "MasterAccumulator",
    "MasterCoefficients",
    "Method",
    "Observations",
    "apply_filters",
    "Selection",
    "Filter",
    "FilterReport",
    "Correct",
    "Similarity",
    "KMeans",
    "GaussianMixture",
    "FILTERS",
    "uniform_coefficients",
    "sweep",
    "Sweep",
]


def __getattr__(name: str) -> Any:
    """Return what an old name stands for, with a warning; for one release."""
    if name != "Em":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn("fastcaps.master.Em", "fastcaps.master.GaussianMixture")
    return GaussianMixture
