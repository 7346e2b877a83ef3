"""Master routing coefficients: accumulated from a trained network's routing, used in its place (section 5)."""

from fastcaps.master.accumulator import MasterAccumulator, accumulate
from fastcaps.master.coefficients import MasterCoefficients

__all__ = ["accumulate", "MasterAccumulator", "MasterCoefficients"]
