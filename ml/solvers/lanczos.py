"""The ends of the spectrum of a matrix that can only be multiplied by, from Lanczos steps.

The eigenvalues of their T (Ritz values) lie inside the spectrum of A: the least one is no lower bound of λ_min. From
a start drawn uniformly on the sphere it is at most (λ_max - λ_min)(ln(1.648 √d/δ)/(2k-1))² too large, but for a chance
of δ (J. Kuczyński and H. Woźniakowski, 1992, theorem 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.solvers.krylov import Krylov


@dataclass(frozen=True)
class Spectrum:
    """`lower_bound` ≤ λ_min with a chance of at least `confidence`; exact once the Krylov space holds all of A."""

    ritz_low: float
    ritz_high: float
    lower_bound: float
    steps: int
    confidence: float


def least_eigenvalue(
    matvec: Callable[[Tensor], Tensor], size: int, steps: int, confidence: float, generator: torch.Generator
) -> Spectrum:
    """The ends of the spectrum of a symmetric matrix, and a lower bound of it that holds with this confidence."""
    if size < 1 or steps < 1 or not 0 < confidence < 1:
        raise InvalidInput(
            f"size is {size}, steps {steps} and confidence {confidence}: pass positive numbers, and a confidence "
            "between 0 and 1"
        )
    start = torch.randn(size, generator=generator, dtype=torch.float64, device=generator.device)
    space = Krylov(matvec, start)
    while space.ahead is not None and len(space) < steps:
        space.grow()
    ritz = torch.linalg.eigvalsh(space.tridiagonal)
    low, high, taken = float(ritz[0]), float(ritz[-1]), len(ritz)
    if space.ahead is None:
        return Spectrum(low, high, low, taken, confidence)
    # λ_max - λ_min is not known either: at each end the Ritz values miss at most this share of it, at half the chance.
    missed = (math.log(1.648 * math.sqrt(size) / ((1 - confidence) / 2)) / (2 * taken - 1)) ** 2
    spread = (high - low) / (1 - 2 * missed) if missed < 0.5 else math.inf
    return Spectrum(low, high, low - missed * spread, taken, confidence)
