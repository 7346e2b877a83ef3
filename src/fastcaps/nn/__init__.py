"""Capsule networks as PyTorch modules: layers, routing, and the paper's network with its configuration.

The configuration can be read without PyTorch, so names are loaded one by one.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.functional import LeakySoftmax, MaxMin, Normalization, RoutingOutput, Softmax
    from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
    from fastcaps.nn.capsnet import CapsNet
    from fastcaps.nn.capsules import CapsuleLayer, FoldedCapsuleLayer
    from fastcaps.nn.config import CapsNetConfig
    from fastcaps.nn.convolutional import PrimaryCapsules, Stem
    from fastcaps.nn.decoder import Decoder
    from fastcaps.nn.fast import FastCapsNet
    from fastcaps.nn.routing import DynamicRouting, Routing

__all__ = [
    "CapsuleLayer",
    "FoldedCapsuleLayer",
    "PrimaryCapsules",
    "Stem",
    "Decoder",
    "Routing",
    "RoutingOutput",
    "DynamicRouting",
    "Normalization",
    "MaxMin",
    "Softmax",
    "LeakySoftmax",
    "CapsNetConfig",
    "CapsNet",
    "FastCapsNet",
    "CapsuleNetwork",
    "CapsuleOutput",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CapsuleLayer": "fastcaps.nn.capsules",
        "FoldedCapsuleLayer": "fastcaps.nn.capsules",
        "PrimaryCapsules": "fastcaps.nn.convolutional",
        "Stem": "fastcaps.nn.convolutional",
        "Decoder": "fastcaps.nn.decoder",
        "Routing": "fastcaps.nn.routing",
        "RoutingOutput": "fastcaps.functional",
        "DynamicRouting": "fastcaps.nn.routing",
        "Normalization": "fastcaps.functional",
        "MaxMin": "fastcaps.functional",
        "Softmax": "fastcaps.functional",
        "LeakySoftmax": "fastcaps.functional",
        "CapsNetConfig": "fastcaps.nn.config",
        "CapsNet": "fastcaps.nn.capsnet",
        "FastCapsNet": "fastcaps.nn.fast",
        "CapsuleNetwork": "fastcaps.nn.base",
        "CapsuleOutput": "fastcaps.nn.base",
    },
    deprecated={
        "PrimaryCaps": ("fastcaps.nn._deprecated", "primary_caps", "PrimaryCapsules(in_channels, types, dim, …)"),
        "ClassCaps": ("fastcaps.nn._deprecated", "class_caps", "CapsuleLayer(in_capsules, in_dim, …)"),
        "FoldedCaps": ("fastcaps.nn._deprecated", "folded_caps", "FoldedCapsuleLayer(in_capsules, in_dim, …)"),
        "fold": ("fastcaps.master.folding", "fold", "fastcaps.fold"),
    },
)
