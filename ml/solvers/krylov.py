"""What products with a symmetric matrix A tell of it: Lanczos steps from a start b.

k products build an orthonormal basis V of the span of b, Ab, ..., A^(k-1)b and the tridiagonal T = VᵀAV. Every step is
made orthogonal to all before it, so that T means what theory says it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ml.errors import NumericalFailure

_EXHAUSTED = 1e-12  # of the largest entry of T: what leads out of the space is rounding


class Krylov:
    """It grows by one product at a time. `ahead` is the direction out of the space, None where nothing leads out."""

    def __init__(self, matvec: Callable[[Tensor], Tensor], start: Tensor) -> None:
        self._matvec = matvec
        self._basis: list[Tensor] = []
        self._diagonal: list[float] = []
        self._beside: list[float] = []
        self.ahead: Tensor | None = start / start.norm()

    def __len__(self) -> int:
        return len(self._basis)

    @property
    def basis(self) -> Tensor:
        """(k, d)."""
        return torch.stack(self._basis)

    @property
    def outward(self) -> float:
        """β_k: how much of the last product leads out of the space."""
        return self._beside[-1]

    @property
    def tridiagonal(self) -> Tensor:
        diagonal, beside = (torch.tensor(entries, dtype=torch.float64) for entries in (self._diagonal, self._beside))
        return diagonal.diag() + beside[:-1].diag(1) + beside[:-1].diag(-1)

    def grow(self) -> None:
        if self.ahead is None:
            raise ValueError("nothing leads out of the space: it holds the answer already")
        self._basis.append(self.ahead)
        out, basis = self._matvec(self.ahead), self.basis
        self._diagonal.append(float(self.ahead.dot(out)))
        for _ in range(2):  # once more: one pass leaves what rounding let through
            out = out - (basis @ out) @ basis
        length = float(out.norm())
        if not math.isfinite(length + self._diagonal[-1]):
            raise NumericalFailure("a Lanczos step met NaN or overflow: bring the data to the scale of the prior")
        largest = max(abs(entry) for entry in (*self._diagonal, *self._beside))
        if len(self) == len(out) or length <= _EXHAUSTED * largest:
            length, self.ahead = 0.0, None
        else:
            self.ahead = out / length
        self._beside.append(length)
