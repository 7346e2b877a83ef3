"""Uniform coefficients, which depend on no image: the baseline that master coefficients have to beat."""

import torch

from fastcaps.functional import get_normalization
from fastcaps.master.accumulator import MasterAccumulator
from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.nn.config import CapsNetConfig


def uniform_coefficients(config: CapsNetConfig) -> MasterCoefficients:
    """Return equal coefficients, as in the first iteration: no routing at all.

    Args:
        config: configuration of the network.

    Returns:
        The coefficients that accumulating one image per class in the first iteration would give.
    """
    i, j = config.lower_capsules, config.classes
    normalization = get_normalization(config.normalization, lower=config.lower, upper=config.upper)
    sums = MasterAccumulator(i, j, normalization)
    sums.update(torch.full((j, i, j), normalization.start(j), dtype=torch.float64), torch.arange(j))
    sums.iteration = 1
    return sums.compute({"data": None})
