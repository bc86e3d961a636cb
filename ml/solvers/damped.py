"""(A + τD)⁻¹v for one damping τ after another, D diagonal: products with A are shared by all of them.

With B = D^(-½)AD^(-½) and b = D^(-½)v the system is (B + τ)u = b, x = D^(-½)u, and the spaces that Lanczos steps build
for B from b are those for every B + τ (A. Frommer and P. Maass, 1999). For each τ the x found is that of conjugate
gradients preconditioned by D, after as many products as the hardest τ so far has asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.cholesky import Solution
from ml.solvers.krylov import Krylov


class DampedSystem:
    """`products` counts those with A."""

    def __init__(self, matvec: Callable[[Tensor], Tensor], vector: Tensor, diagonal: Tensor) -> None:
        if not bool((diagonal > 0).all()):
            raise InvalidInput("the damping diagonal has entries that are not positive: pass numbers > 0")
        root = diagonal.sqrt()
        self._vector, self._root = vector, root
        self._length = float((vector / root).norm())
        if not 0 < self._length < float("inf"):
            raise InvalidInput("the vector is zero, NaN or infinite: there is nothing to solve for")
        self._space = Krylov(lambda u: matvec(u / root) / root, vector / root)

    @property
    def products(self) -> int:
        return len(self._space)

    def solve(self, damping: float, tolerance: float, max_products: int) -> Solution:
        """Until ‖v - (A + τD)x‖ ≤ tolerance·‖v‖, or so many products were made, earlier dampings' among them."""
        goal = tolerance * float(self._vector.norm())
        while True:
            if len(self._space) > 0:
                solution = self._within(damping, goal)
                if solution.converged or len(self._space) >= max_products:
                    return solution
            self._space.grow()

    def _within(self, damping: float, goal: float) -> Solution:
        """The x of this space whose residual leads out of it. That residual is known without another product."""
        small = self._space.tridiagonal
        start = torch.zeros(len(small), 1, dtype=torch.float64)
        start[0] = self._length
        factor, failed = torch.linalg.cholesky_ex(small + damping * torch.eye(len(small), dtype=torch.float64))
        if failed:
            raise NumericalFailure(
                f"the curvature is not positive definite with a damping of {damping:.3g}: damp more, or solve with a "
                "positive definite curvature"
            )
        weights = torch.cholesky_solve(start, factor).flatten()
        ahead, residual = self._space.ahead, 0.0
        if ahead is not None:
            residual = abs(self._space.outward * float(weights[-1])) * float((self._root * ahead).norm())
        x = (weights.to(self._root) @ self._space.basis) / self._root
        return Solution(x, residual, len(small), solver="conjugate gradients", converged=residual <= goal)
