"""The paper's procedures written out loop by loop, over NumPy, following the text line by line.

Slow and plain on purpose: every vectorised path is compared with these.
"""

from tests.reference.correlations import mean_class_correlations, pearson
from tests.reference.paper import (
    fast_routing,
    master_coefficients,
    max_min,
    prediction_vectors,
    routing_procedure,
    softmax,
    squash,
)

__all__ = [
    "squash",
    "max_min",
    "softmax",
    "prediction_vectors",
    "routing_procedure",
    "fast_routing",
    "master_coefficients",
    "pearson",
    "mean_class_correlations",
]
