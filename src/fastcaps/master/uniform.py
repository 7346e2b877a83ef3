"""The coefficients in which no image had a say: what a claim about master coefficients has to beat."""

from typing import cast

import torch

from fastcaps.functional import Normalization
from fastcaps.master.accumulator import MasterAccumulator
from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.nn.config import CapsNetConfig


def uniform_coefficients(config: CapsNetConfig) -> MasterCoefficients:
    """All coefficients alike, as in the first iteration: no routing at all.

    Args:
        config: of the network they are for.

    Returns:
        What accumulating one image of each class in the first iteration would give.
    """
    i, j = config.lower_capsules, config.classes
    sums = MasterAccumulator(i, j, cast(Normalization, config.normalization), config.lower, config.upper)
    start = 1.0 if config.normalization == "max_min" else 1.0 / j
    sums.update(torch.full((j, i, j), start, dtype=torch.float64), torch.arange(j))
    sums.iteration = 1
    return sums.compute({"data": None})
