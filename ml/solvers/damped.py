"""Solver of (A + τD)x = v for a sequence of dampings τ, D diagonal: all of them share the products with A.

With B = D^(-½)AD^(-½) and b = D^(-½)v the system is (B + τ)u = b, x = D^(-½)u, and the Krylov spaces of B and b are
those of every B + τ (A. Frommer and P. Maass, 1999). For each τ the solution is that of conjugate gradients
preconditioned by D, after as many products as the hardest τ so far required.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.cholesky import Solution
from ml.solvers.krylov import Krylov


class DampedSystem:
    """Linear system (A + τD)x = v. `products` counts the products with A."""

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
        """Solve to ‖v - (A + τD)x‖ ≤ tolerance·‖v‖, or until `max_products`, those of earlier dampings included."""
        goal = tolerance * float(self._vector.norm())
        while True:
            if len(self._space) > 0:
                solution = self._solve_in_space(damping, goal)
                if solution.converged or len(self._space) >= max_products:
                    return solution
            self._space.grow()

    def _solve_in_space(self, damping: float, goal: float) -> Solution:
        """Return the x in this space whose residual is orthogonal to it. The residual needs no further product."""
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
        direction, residual = self._space.next_direction, 0.0
        if direction is not None:
            residual = abs(self._space.next_norm * float(weights[-1])) * float((self._root * direction).norm())
        x = (weights.to(self._root) @ self._space.basis) / self._root
        return Solution(x, residual, len(small), solver="conjugate gradients", converged=residual <= goal)
