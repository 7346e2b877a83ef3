"""Intervals and paired tests for accuracies."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from fastcaps.analysis.results import Comparison

Labels = NDArray[np.int64]


def proportion_interval(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion."""
    if not 0 <= count <= total or total < 1:
        raise ValueError(f"{count} of {total} is no proportion: expected a count from 0 to a total of at least 1")
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def compare(old: Labels, new: Labels, truth: Labels) -> Comparison:
    """Compare two sets of predictions ``(n)`` with the labels ``(n)``, image by image."""
    if not old.shape == new.shape == truth.shape or truth.ndim != 1 or not len(truth):
        raise ValueError(
            f"answers have shapes {old.shape} and {new.shape}, the truth {truth.shape}: expected the same (n,)"
        )
    n = len(truth)
    gained = int(((old != truth) & (new == truth)).sum())
    lost = int(((old == truth) & (new != truth)).sum())
    p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    # Agresti and Min (2005): half an image more in each of the four cells.
    b, c, m = gained + 0.5, lost + 0.5, n + 2
    middle, width = (b - c) / m, 1.959964 * np.sqrt(b + c - (b - c) ** 2 / m) / m
    return Comparison(
        changed=int((old != new).sum()),
        gained=gained,
        lost=lost,
        p_value=p_value,
        difference=(gained - lost) / n,
        interval=(float(middle - width), float(middle + width)),
    )
