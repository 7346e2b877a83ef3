"""The capsule network and its folded twin, as PyTorch modules, with their configuration.

The configuration can be read without PyTorch, so its names are loaded one by one.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork, CapsuleOutput
    from fastcaps.nn.capsnet import CapsNet
    from fastcaps.nn.config import CapsNetConfig
    from fastcaps.nn.fast import FastCapsNet, fold
    from fastcaps.nn.layers import ClassCaps, Decoder, FoldedCaps, PrimaryCaps, Stem

__all__ = [
    "CapsNetConfig",
    "CapsNet",
    "FastCapsNet",
    "fold",
    "CapsuleNetwork",
    "CapsuleOutput",
    "Stem",
    "PrimaryCaps",
    "ClassCaps",
    "FoldedCaps",
    "Decoder",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CapsNetConfig": "fastcaps.nn.config",
        "CapsNet": "fastcaps.nn.capsnet",
        "FastCapsNet": "fastcaps.nn.fast",
        "fold": "fastcaps.nn.fast",
        "CapsuleNetwork": "fastcaps.nn.base",
        "CapsuleOutput": "fastcaps.nn.base",
        "Stem": "fastcaps.nn.layers",
        "PrimaryCaps": "fastcaps.nn.layers",
        "ClassCaps": "fastcaps.nn.layers",
        "FoldedCaps": "fastcaps.nn.layers",
        "Decoder": "fastcaps.nn.layers",
    },
)
