"""The paper's mathematics as pure functions of tensors.

Shapes are written with one legend throughout the project: ``b`` batch, ``i`` lower capsules, ``j`` class
capsules, ``d`` lower dimension, ``e`` class dimension. Votes are ``(b i j e)``, weights ``(i d j e)``,
routing coefficients ``(b i j)``, class capsules ``(b j e)``.
"""

from typing import Any

from fastcaps.functional.losses import (
    capsule_distillation_loss,
    cross_entropy_loss,
    length_distillation_loss,
    margin_loss,
    reconstruction_loss,
)
from fastcaps.functional.normalizations import (
    LeakySoftmax,
    MaxMin,
    Normalization,
    Softmax,
    get_normalization,
    normalization_names,
)
from fastcaps.functional.routing import (
    RoutingOutput,
    dynamic_routing,
    fast_routing,
    fold_weights,
    folded_routing,
    prediction_vectors,
    route_capsules,
    routing_trace,
    trace_capsules,
)
from fastcaps.functional.squashing import squash

__all__ = [
    "squash",
    "Normalization",
    "MaxMin",
    "Softmax",
    "LeakySoftmax",
    "get_normalization",
    "normalization_names",
    "prediction_vectors",
    "dynamic_routing",
    "route_capsules",
    "RoutingOutput",
    "routing_trace",
    "trace_capsules",
    "fast_routing",
    "fold_weights",
    "folded_routing",
    "margin_loss",
    "cross_entropy_loss",
    "reconstruction_loss",
    "length_distillation_loss",
    "capsule_distillation_loss",
]


def __getattr__(name: str) -> Any:
    """Return what an old name stands for, with a warning; for one release."""
    from fastcaps.functional import _deprecated

    if name == "Routing":
        _deprecated.warn("fastcaps.functional.Routing", "fastcaps.functional.RoutingOutput")
        return RoutingOutput
    if name in ("normalize", "max_min"):
        return getattr(_deprecated, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
