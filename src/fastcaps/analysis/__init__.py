"""Analysis of a trained network in numbers and figures."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.analysis.evaluation import evaluate
    from fastcaps.analysis.results import Comparison, Evaluation, Variant
    from fastcaps.analysis.statistics import compare, proportion_interval

__all__ = ["evaluate", "Evaluation", "Variant", "compare", "Comparison", "proportion_interval"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "evaluate": "fastcaps.analysis.evaluation",
        "Evaluation": "fastcaps.analysis.results",
        "Variant": "fastcaps.analysis.results",
        "compare": "fastcaps.analysis.statistics",
        "Comparison": "fastcaps.analysis.results",
        "proportion_interval": "fastcaps.analysis.statistics",
    },
)
