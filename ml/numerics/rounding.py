"""Counting roundings, for bounds that must hold in floating point."""

import math

UNIT = 2.0**-53
"""Float64 unit roundoff."""


def gamma(operations: float) -> float:
    """Higham's γ_k = ku/(1-ku): the relative error that k roundings can build up, in whatever order."""
    product = operations * UNIT
    return product / (1 - product) if product < 1 else math.inf
