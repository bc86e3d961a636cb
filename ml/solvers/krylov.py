"""Krylov space of a symmetric matrix A and a vector b, built by Lanczos steps.

k products give an orthonormal basis V of the span of b, Ab, ..., A^(k-1)b and the tridiagonal T = VᵀAV. Every step is
orthogonalised against all steps before it, so that T has the properties that theory assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ml.errors import NumericalFailure

_EXHAUSTED = 1e-12  # of the largest entry of T: below it, the part outside of the space is rounding


class Krylov:
    """Krylov space that grows by one product at a time. `next_direction` is None once the space is invariant."""

    def __init__(self, matvec: Callable[[Tensor], Tensor], start: Tensor) -> None:
        self._matvec = matvec
        self._basis: list[Tensor] = []
        self._diagonal: list[float] = []
        self._off_diagonal: list[float] = []
        self.next_direction: Tensor | None = start / start.norm()

    def __len__(self) -> int:
        return len(self._basis)

    @property
    def basis(self) -> Tensor:
        """Return V as rows: (k, d)."""
        return torch.stack(self._basis)

    @property
    def next_norm(self) -> float:
        """Return β_k, the norm of the part of the last product that is outside of the space."""
        return self._off_diagonal[-1]

    @property
    def tridiagonal(self) -> Tensor:
        diagonal = torch.tensor(self._diagonal, dtype=torch.float64)
        off_diagonal = torch.tensor(self._off_diagonal[:-1], dtype=torch.float64)
        return diagonal.diag() + off_diagonal.diag(1) + off_diagonal.diag(-1)

    def grow(self) -> None:
        """Add a direction, by one product."""
        if self.next_direction is None:
            raise ValueError("the space is invariant: it cannot grow")
        self._basis.append(self.next_direction)
        out, basis = self._matvec(self.next_direction), self.basis
        self._diagonal.append(float(self.next_direction.dot(out)))
        for _ in range(2):  # twice, since rounding limits a single pass
            out = out - (basis @ out) @ basis
        length = float(out.norm())
        if not math.isfinite(length + self._diagonal[-1]):
            raise NumericalFailure("a Lanczos step gave NaN or overflowed: bring the data to the scale of the prior")
        largest = max(abs(entry) for entry in (*self._diagonal, *self._off_diagonal))
        if len(self) == len(out) or length <= _EXHAUSTED * largest:
            length, self.next_direction = 0.0, None
        else:
            self.next_direction = out / length
        self._off_diagonal.append(length)
