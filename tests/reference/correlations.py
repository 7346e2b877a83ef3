"""Pearson's correlation and its mean over all pairs, formed one by one."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pearson(a: Array, b: Array) -> float:
    """Correlation of two lists of numbers; NaN when one is constant."""
    n = len(a)
    mean_a, mean_b = sum(a) / n, sum(b) / n
    if len(set(a.tolist())) == 1 or len(set(b.tolist())) == 1:
        return math.nan
    product = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    lengths = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return float(product / math.sqrt(lengths))


def mean_class_correlations(columns: Array, labels: list[int], classes: int) -> Array:
    """Mean over all pairs of images of two classes; an image is no pair with itself, a constant column is left out."""
    means = np.full((classes, classes), math.nan)
    for a in range(classes):
        for b in range(classes):
            values = []
            for m in range(len(labels)):
                for n in range(len(labels)):
                    if m != n and labels[m] == a and labels[n] == b:
                        value = pearson(columns[m], columns[n])
                        if not math.isnan(value):
                            values.append(value)
            if values:
                means[a, b] = sum(values) / len(values)
    return means
