"""Uniform coefficients, which depend on no image: the baseline that master coefficients have to beat."""

import torch

from fastcaps.functional import get_normalization
from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.nn.config import CapsNetConfig


def uniform_coefficients(config: CapsNetConfig) -> MasterCoefficients:
    """Return the coefficients of the first iteration, equal for all classes: no routing at all.

    Args:
        config: configuration of the network.
    """
    normalization = get_normalization(config.normalization, lower=config.lower, upper=config.upper)
    shape, start = (config.lower_capsules, config.classes), normalization.start(config.classes)
    counts = torch.zeros(config.classes, dtype=torch.int64)
    return MasterCoefficients(
        values=torch.full(shape, start, dtype=torch.float64),
        containers=None,
        counts=counts,
        normalization=normalization,
        iteration=1,
        provenance={"data": None},
    )
