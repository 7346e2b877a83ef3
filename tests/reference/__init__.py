"""The paper's procedures written out loop by loop, over NumPy, following the text line by line.

Slow and plain on purpose: every vectorized path is compared with these.
"""

from tests.reference.correlations import mean_class_correlations, pearson
from tests.reference.paper import (
    columns_master,
    fast_routing,
    leaky_softmax,
    master_coefficients,
    max_min,
    mean_master,
    pooled_master,
    prediction_vectors,
    routing_procedure,
    softmax,
    sparsemax,
    squash,
    start,
)

__all__ = [
    "squash",
    "max_min",
    "softmax",
    "leaky_softmax",
    "sparsemax",
    "start",
    "prediction_vectors",
    "routing_procedure",
    "fast_routing",
    "master_coefficients",
    "columns_master",
    "pooled_master",
    "mean_master",
    "pearson",
    "mean_class_correlations",
]
