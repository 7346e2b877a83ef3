"""Numbers in eight bits: weights symmetric and by output channel, activations by the range that calibration saw.

The stem stays in float32: it has a hundredth of the weights and a tenth of the work, and its rounding did more harm
than all the rest. So did one range for all channels of PrimaryCaps, some of which reach fifty times as far as others;
each has its own.

Processors without VNNI add up two products of an unsigned and a signed byte in sixteen bits, saturating. So one of the
two factors takes seven of its eight bits: 2 · 255 · 64 and 2 · 127 · 127 fit, 2 · 255 · 127 would not, silently. In
PrimaryCaps it is the weights; in the folded matrix it is the lower capsules, which are shorter than one. An exported
network gives the same answers with and without VNNI.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Scale(NamedTuple):
    """A byte q stands for ``scale · (q − zero)``."""

    scale: np.float32
    zero: np.uint8


# Components of squashed vectors, between −1 and 1, as 1 … 127.
CAPSULES = Scale(np.float32(1 / 63), np.uint8(64))
# The largest byte of a weight that meets bytes up to 255, and up to 127.
LARGEST_WEIGHT, LARGEST_FOLDED = 64, 127


class Ranges(NamedTuple):
    """How far each activation reaches, as calibration saw it.

    Attributes:
        maps: the stem's greatest value after ReLU.
        channels: of each channel of PrimaryCaps the largest absolute value before squash.
    """

    maps: float
    channels: NDArray[np.float32]

    @property
    def maps_scale(self) -> Scale:
        """Of the stem's maps."""
        return Scale(np.float32(self.maps / 255 or 1.0), np.uint8(0))

    @property
    def channel_steps(self) -> NDArray[np.float32]:
        """What one of 127 steps is worth in each channel of PrimaryCaps."""
        return np.where(self.channels > 0, self.channels / 127, 1).astype(np.float32)


def quantized_weight(
    weight: NDArray[np.float32], axis: int, largest: int, least: NDArray[np.floating] | float = 0.0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight as bytes of its own shape, up to the largest, and a scale, least or more, for each index of an axis."""
    others = tuple(k for k in range(weight.ndim) if k != axis % weight.ndim)
    reach = np.abs(weight).max(axis=others)
    scale = np.maximum(np.where(reach > 0, reach / largest, 1), least).astype(np.float32)
    shape = [1] * weight.ndim
    shape[axis] = -1
    steps = np.rint(weight / scale.reshape(shape))
    return np.clip(steps, -largest, largest).astype(np.int8), scale
