"""Checks that more than one room makes, in the same words. Knows no PyTorch."""

import math

NORMALIZATIONS = ("max_min", "softmax")


def check_normalization(normalization: str, lower: float, upper: float) -> None:
    """Refuse a normalisation that does not exist and bounds that enclose nothing."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization is {normalization!r}, expected one of {', '.join(NORMALIZATIONS)}")
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(
            f"the bounds of Max-Min are lower={lower}, upper={upper}: expected finite numbers, lower < upper"
        )
