"""Quantization to eight bits: weights symmetric per output channel, activations by their range in calibration.

A stem of one convolution takes the bytes of the images directly. Standardized images are not bytes, and a deeper stem
has intermediate results: both stay in float32, because they are a small part of the work. Each channel of
PrimaryCaps has its own range, since some reach fifty times as far as others.

Processors without VNNI add up two products of an unsigned and a signed byte in sixteen bits, saturating. So one of the
two factors uses only seven of its eight bits: 2 · 255 · 64 and 2 · 127 · 127 fit, 2 · 255 · 127 would not, silently. In
convolutions it is the weights; in the folded matrix it is the lower capsules, which are shorter than one. An exported
network gives the same answers with and without VNNI.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcaps.nn.config import CapsNetConfig


class Scale(NamedTuple):
    """A byte q stands for ``scale · (q − zero)``."""

    scale: np.float32
    zero: np.uint8


# Components of squashed vectors, between −1 and 1, as 1 … 127.
CAPSULES = Scale(np.float32(1 / 63), np.uint8(64))
# Pixels of an image, between 0 and 1.
PIXELS = Scale(np.float32(1 / 255), np.uint8(0))
# The largest byte of a weight that is multiplied with bytes up to 255, and up to 127.
LARGEST_WEIGHT, LARGEST_FOLDED = 64, 127


class Ranges(NamedTuple):
    """Ranges of activations in calibration.

    Attributes:
        maps: largest value of the stem after ReLU.
        channels: largest absolute value per channel of PrimaryCaps, before squash.
    """

    maps: float
    channels: NDArray[np.float32]

    @property
    def maps_scale(self) -> Scale:
        """Scale of the maps of the stem."""
        return Scale(np.float32(self.maps / 255 or 1.0), np.uint8(0))

    @property
    def channel_steps(self) -> NDArray[np.float32]:
        """Size of one of 127 steps per channel of PrimaryCaps."""
        return np.where(self.channels > 0, self.channels / 127, 1).astype(np.float32)


def rounds_stem(config: CapsNetConfig) -> bool:
    """Return whether the stem is also quantized to int8."""
    return not config.standardize and not config.stem_layers


def quantized_weight(
    weight: NDArray[np.float32], axis: int, largest: int, least: NDArray[np.floating] | float = 0.0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a weight.

    Args:
        weight: weight of any shape.
        axis: axis with one scale per index.
        largest: largest byte.
        least: smallest scale.

    Returns:
        Bytes of the shape of the weight, and the scales.
    """
    others = tuple(k for k in range(weight.ndim) if k != axis % weight.ndim)
    reach = np.abs(weight).max(axis=others)
    scale = np.maximum(np.where(reach > 0, reach / largest, 1), least).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    steps = np.rint(weight / scale.reshape(shape))
    return np.clip(steps, -largest, largest).astype(np.int8), scale
