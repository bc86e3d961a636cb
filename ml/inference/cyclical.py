"""Cyclical step sizes (R. Zhang, C. Li, J. Zhang, C. Chen and A. Wilson 2020): a chain that visits several modes.

Each cycle starts with long steps, which leave a mode, and ends with short ones, which sample the next:

    ε_t = (scale / 2n) · (cos(π r_t) + 1)        r_t = ((t - 1) mod length) / length

The exploration stage is r_t < `exploration`; the iterates after it, in the sampling stage, may be draws. The noise is
on in both stages, unlike the authors', who descend without it while they explore: long steps are wide enough with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.errors import InvalidInput
from ml.models.checks import check_count, check_scale


@dataclass(frozen=True)
class Cyclical:
    """Cycles of `length` iterations, of which the share `exploration` gives no draws."""

    scale: float
    length: int
    exploration: float

    def __post_init__(self) -> None:
        check_scale("scale of the step size", self.scale)
        check_count("length of a cycle", self.length, minimum=2)
        if not 0 <= self.exploration < 1:
            raise InvalidInput(f"exploration is {self.exploration}: pass a share from 0 to below 1")

    def at(self, iteration: int, rows: int) -> float:
        return self.scale / (2 * rows) * (math.cos(math.pi * self._elapsed(iteration)) + 1)

    def samples(self, iteration: int) -> bool:
        """Return whether an iterate may be a draw."""
        return self._elapsed(iteration) >= self.exploration

    def _elapsed(self, iteration: int) -> float:
        """Return r_t, the share of the cycle that is over."""
        return (iteration - 1) % self.length / self.length
