"""The paper's mathematics as pure functions on tensors.

Shapes are written with one legend throughout the project: ``b`` batch, ``i`` lower capsules, ``j`` class
capsules, ``d`` lower dimension, ``e`` class dimension. Votes are ``(b i j e)``, weights ``(i d j e)``,
routing coefficients ``(b i j)``, class capsules ``(b j e)``.
"""

from fastcaps.functional.capsules import Normalization, max_min, normalize, squash
from fastcaps.functional.losses import cross_entropy_loss, margin_loss, reconstruction_loss
from fastcaps.functional.routing import (
    Routing,
    dynamic_routing,
    fast_routing,
    fold_weights,
    folded_routing,
    prediction_vectors,
    route_capsules,
    routing_trace,
    trace_capsules,
)

__all__ = [
    "squash",
    "max_min",
    "normalize",
    "Normalization",
    "prediction_vectors",
    "dynamic_routing",
    "route_capsules",
    "Routing",
    "routing_trace",
    "trace_capsules",
    "fast_routing",
    "fold_weights",
    "folded_routing",
    "margin_loss",
    "cross_entropy_loss",
    "reconstruction_loss",
]
