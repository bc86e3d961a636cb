"""The ends of the spectrum of a matrix that can only be multiplied by, from Lanczos steps.

k steps from a start build an orthonormal basis V of the Krylov space and the tridiagonal T = VᵀAV, with β_k what
leads out of the space. All steps are made orthogonal to all before them, so that T means what theory says it means.

The eigenvalues of T (Ritz values) lie inside the spectrum of A: the least one is never a lower bound of λ_min. From a
start drawn uniformly on the sphere it is at most (λ_max - λ_min)(ln(1.648 √d/δ)/(2k-1))² too large, but for a chance
of δ (J. Kuczyński and H. Woźniakowski, 1992, theorem 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure

_EXHAUSTED = 1e-12  # of the largest entry of T: what leads out of the Krylov space is rounding


@dataclass(frozen=True)
class Spectrum:
    """`lower_bound` ≤ λ_min with a chance of at least `confidence`; exact once the Krylov space holds all of A."""

    ritz_low: float
    ritz_high: float
    lower_bound: float
    steps: int
    confidence: float


@dataclass(frozen=True, eq=False)
class _Krylov:
    basis: Tensor  # (k, d)
    diagonal: Tensor  # (k,)
    beside: Tensor  # (k,): the last one leads out of the space, 0 where nothing does

    @property
    def tridiagonal(self) -> Tensor:
        return _tridiagonal(self.diagonal, self.beside[:-1])


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
    space = _krylov(matvec, start, steps)
    ritz = torch.linalg.eigvalsh(space.tridiagonal)
    low, high, taken = float(ritz[0]), float(ritz[-1]), len(ritz)
    if float(space.beside[-1]) == 0:
        return Spectrum(low, high, low, taken, confidence)
    # λ_max - λ_min is not known either: at each end the Ritz values miss at most this share of it, at half the chance.
    missed = (math.log(1.648 * math.sqrt(size) / ((1 - confidence) / 2)) / (2 * taken - 1)) ** 2
    spread = (high - low) / (1 - 2 * missed) if missed < 0.5 else math.inf
    return Spectrum(low, high, low - missed * spread, taken, confidence)


def _krylov(matvec: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> _Krylov:
    basis = start.new_empty(min(steps, len(start)), len(start))
    diagonal, beside = start.new_zeros(len(basis)), start.new_zeros(len(basis))
    basis[0] = start / start.norm()
    for step in range(len(basis)):
        out = matvec(basis[step])
        diagonal[step] = basis[step].dot(out)
        for _ in range(2):  # once more: one pass leaves what rounding let through
            out = out - (basis[: step + 1] @ out) @ basis[: step + 1]
        beside[step] = out.norm()
        if not math.isfinite(float(beside[step] + diagonal[step])):
            raise NumericalFailure("a Lanczos step met NaN or overflow: bring the data to the scale of the prior")
        scale = float(torch.cat([diagonal.abs(), beside[:step]]).max())
        if step + 1 == len(start) or float(beside[step]) <= _EXHAUSTED * scale:
            beside[step] = 0
            return _Krylov(basis[: step + 1], diagonal[: step + 1], beside[: step + 1])
        if step + 1 < len(basis):
            basis[step + 1] = out / beside[step]
    return _Krylov(basis, diagonal, beside)


def _tridiagonal(diagonal: Tensor, beside: Tensor) -> Tensor:
    return diagonal.diag() + beside.diag(1) + beside.diag(-1)
