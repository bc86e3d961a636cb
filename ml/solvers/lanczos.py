"""Extreme eigenvalues of a symmetric matrix A from products with it, by Lanczos steps.

The eigenvalues of T (Ritz values) lie within the spectrum of A, so the smallest one is no lower bound of λ_min. With a
start drawn uniformly from the sphere it exceeds λ_min by at most (λ_max - λ_min)(ln(1.648 √d/δ)/(2k-1))², with
probability 1 - δ (J. Kuczyński and H. Woźniakowski, 1992, theorem 4).
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
    """Ends of a spectrum: `lower_bound` ≤ λ_min with probability `confidence`, exact once the space is invariant."""

    ritz_low: float
    ritz_high: float
    lower_bound: float
    steps: int
    confidence: float


def smallest_eigenvalue(
    matvec: Callable[[Tensor], Tensor], size: int, steps: int, confidence: float, generator: torch.Generator
) -> Spectrum:
    """Return the extreme Ritz values of a symmetric matrix, and a lower bound of λ_min with this confidence."""
    if size < 1 or steps < 1 or not 0 < confidence < 1:
        raise InvalidInput(
            f"size is {size}, steps {steps} and confidence {confidence}: pass positive numbers, and a confidence "
            "between 0 and 1"
        )
    start = torch.randn(size, generator=generator, dtype=torch.float64, device=generator.device)
    space = Krylov(matvec, start)
    while space.next_direction is not None and len(space) < steps:
        space.grow()
    ritz = torch.linalg.eigvalsh(space.tridiagonal)
    low, high, taken = float(ritz[0]), float(ritz[-1]), len(ritz)
    if space.next_direction is None:
        return Spectrum(low, high, low, taken, confidence)
    # λ_max - λ_min is unknown too: at each end the Ritz values miss at most this share of it, with half of δ each.
    missed = (math.log(1.648 * math.sqrt(size) / ((1 - confidence) / 2)) / (2 * taken - 1)) ** 2
    spread = (high - low) / (1 - 2 * missed) if missed < 0.5 else math.inf
    return Spectrum(low, high, low - missed * spread, taken, confidence)
