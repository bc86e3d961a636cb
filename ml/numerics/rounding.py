"""Rounding error bounds for floating point."""

import math

UNIT = 2.0**-53
"""Float64 unit roundoff."""


def gamma(operations: float) -> float:
    """Return Higham's γ_k = ku/(1-ku), a bound on the relative error of k roundings in any order."""
    product = operations * UNIT
    return product / (1 - product) if product < 1 else math.inf
