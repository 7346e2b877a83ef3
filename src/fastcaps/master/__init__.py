"""Master routing coefficients: accumulated from a trained network's routing, used in its place (section 5).

Summaries of coefficients can be read without PyTorch, so names are loaded one by one.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.master.accumulator import MasterAccumulator, Selection, accumulate
    from fastcaps.master.coefficients import MasterCoefficients
    from fastcaps.master.filters import FILTERS, Correct, Filter, GaussianMixture, KMeans, Similarity, apply_filters
    from fastcaps.master.folding import fold
    from fastcaps.master.observations import Observations
    from fastcaps.master.recording import Recorder, capsule_layers, record
    from fastcaps.master.summary import FilterReport, MasterSummary, Method
    from fastcaps.master.sweeping import Sweep, sweep
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
    "MasterSummary",
    "Correct",
    "Similarity",
    "KMeans",
    "GaussianMixture",
    "FILTERS",
    "uniform_coefficients",
    "sweep",
    "Sweep",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "accumulate": "fastcaps.master.accumulator",
        "fold": "fastcaps.master.folding",
        "record": "fastcaps.master.recording",
        "Recorder": "fastcaps.master.recording",
        "capsule_layers": "fastcaps.master.recording",
        "MasterAccumulator": "fastcaps.master.accumulator",
        "MasterCoefficients": "fastcaps.master.coefficients",
        "Method": "fastcaps.master.summary",
        "Observations": "fastcaps.master.observations",
        "apply_filters": "fastcaps.master.filters",
        "Selection": "fastcaps.master.accumulator",
        "Filter": "fastcaps.master.filters",
        "FilterReport": "fastcaps.master.summary",
        "MasterSummary": "fastcaps.master.summary",
        "Correct": "fastcaps.master.filters",
        "Similarity": "fastcaps.master.filters",
        "KMeans": "fastcaps.master.filters",
        "GaussianMixture": "fastcaps.master.filters",
        "FILTERS": "fastcaps.master.filters",
        "uniform_coefficients": "fastcaps.master.uniform",
        "sweep": "fastcaps.master.sweeping",
        "Sweep": "fastcaps.master.sweeping",
    },
    deprecated={"Em": ("fastcaps.master.filters", "GaussianMixture", "fastcaps.master.GaussianMixture")},
)
