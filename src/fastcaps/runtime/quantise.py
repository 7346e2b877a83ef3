"""Numbers in eight bits: weights symmetric and by output channel, activations by the range that calibration saw.

Weights take seven of their eight bits, −64 … 64. Processors without VNNI add up two products of an unsigned and a
signed byte in sixteen bits, saturating: 2 · 255 · 64 = 32,640 fits, 2 · 255 · 127 would not, silently. So an exported
network gives the same answers with and without VNNI.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST_WEIGHT = 64


class Scale(NamedTuple):
    """A byte q stands for ``scale · (q − zero)``."""

    scale: np.float32
    zero: np.uint8


class Ranges(NamedTuple):
    """Least and greatest value that calibration saw of each activation.

    Attributes:
        images: after standardisation; not used by a network that doesn't standardise, whose bytes are exact.
        maps: the stem's, after ReLU.
        channels: PrimaryCaps' before squash.
        capsules: the lower capsules.
    """

    images: tuple[float, float]
    maps: tuple[float, float]
    channels: tuple[float, float]
    capsules: tuple[float, float]

    def scale(self, name: str) -> Scale:
        """How an activation's range is spread over a byte; zero is always met exactly."""
        least, greatest = getattr(self, name)
        least, greatest = min(least, 0.0), max(greatest, 0.0)
        scale = np.float32((greatest - least) / 255 or 1.0)
        return Scale(scale, np.uint8(round(-least / float(scale))))


def quantised_weight(weight: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight as bytes of its own shape, and a scale for each index of an axis."""
    others = tuple(k for k in range(weight.ndim) if k != axis % weight.ndim)
    largest = np.abs(weight).max(axis=others)
    scale = np.where(largest > 0, largest / LARGEST_WEIGHT, 1).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    steps = np.rint(weight / scale.reshape(shape))
    return np.clip(steps, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8), scale
