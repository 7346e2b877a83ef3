"""Distribution of the coefficients, their positions, and the parts of the master matrix (section 5)."""

from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.distributed import World
from fastcaps.functional import get_normalization
from fastcaps.master import MasterCoefficients
from fastcaps.nn.config import CapsNetConfig

Floats = NDArray[np.float64]


@final
class CoefficientHistogram:
    """Histogram of the coefficients of each iteration: `update` with batches, `merge` with another histogram.

    Attributes:
        low: left edge of the first bin.
        high: right edge of the last bin; a coefficient that equals it is in that bin.
        counts: ``(r bins)``.
    """

    def __init__(self, iterations: int, low: float = 0.0, high: float = 1.0, bins: int = 100) -> None:
        """Make an empty histogram."""
        self.low, self.high = low, high
        self.counts = np.zeros((iterations, bins), np.int64)

    @classmethod
    def of(cls, config: CapsNetConfig, iterations: int | None = None) -> Self:
        """Return a histogram for a network: from 0 to 1, extended to the bounds of its normalization.

        Args:
            config: configuration of the network.
            iterations: number of iterations of its routing, instead of that of the configuration.
        """
        lower, upper = get_normalization(config.normalization, lower=config.lower, upper=config.upper).bounds
        return cls(iterations or config.iterations, min(0.0, lower), max(1.0, upper))

    @property
    def edges(self) -> Floats:
        """Edges of the bins ``(bins + 1)``."""
        return np.linspace(self.low, self.high, self.counts.shape[1] + 1)

    @property
    def shares(self) -> Floats:
        """Fraction of the coefficients of each iteration in each bin ``(r bins)``."""
        shares: Floats = self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)
        return shares

    def update(self, trace: Tensor) -> Self:
        """Add the coefficients of every iteration ``(b r i j)``."""
        iterations, bins = self.counts.shape
        if trace.ndim != 4 or trace.shape[1] != iterations:
            raise ValueError(f"the trace has shape {tuple(trace.shape)}, expected (batch, {iterations}, i, j)")
        for k in range(iterations):
            # Rounding may put a coefficient slightly outside its bounds, where histc would not count it.
            values = trace[:, k].float().clamp(self.low, self.high)
            self.counts[k] += torch.histc(values, bins, self.low, self.high).long().cpu().numpy()
        return self

    def merge(self, other: "CoefficientHistogram") -> Self:
        """Add the counts of another histogram."""
        self.counts += other.counts
        return self

    def all_reduce(self, world: World) -> Self:
        """Replace the counts by their sum over all ranks."""
        world.all_reduce(torch.from_numpy(self.counts))
        return self

    def share_around(self, value: float, width: float) -> Floats:
        """Return the fraction of coefficients in the bins whose center is at most ``width`` from a value ``(r)``."""
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        near: Floats = self.shares[:, np.abs(middles - value) <= width].sum(1)
        return near


def by_position(values: NDArray[np.floating], config: CapsNetConfig) -> Floats:
    """Return coefficients ``(i j)`` as a map of positions per class and capsule type ``(j types height width)``.

    The order of the lower capsules is that of `fastcaps.nn.PrimaryCapsules`.
    """
    expected = (config.lower_capsules, config.classes)
    if values.shape != expected:
        raise ValueError(f"coefficients have shape {values.shape}, expected {expected} for this network")
    height, width = config.grid
    grid = np.asarray(values, np.float64).reshape(height, width, config.capsule_types, config.classes)
    return grid.transpose(3, 2, 0, 1)


def normalized_containers(containers: Tensor, master: MasterCoefficients) -> Floats:
    """Return the container of each class ``(j i j)``, divided by its count, with normalized rows.

    This is step 2 of the paper; step 3 takes one column of each container, that of its class.
    """
    means = containers / master.counts[:, None, None]  # (j, i, j)
    rows: Floats = master.normalization(means).numpy()
    return rows
