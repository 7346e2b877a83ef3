"""What a trained network does, in numbers and figures."""

from fastcaps.analysis.evaluation import Evaluation, Variant, evaluate
from fastcaps.analysis.statistics import Comparison, compare, proportion_interval

__all__ = ["evaluate", "Evaluation", "Variant", "compare", "Comparison", "proportion_interval"]
