"""Cholesky solver for Hx = v: exact up to rounding, for Hessians small enough to store."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import NumericalFailure


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of Hx = v. `residual` is ‖v - Hx‖₂ as computed; `converged` says whether it is within tolerance.

    `energy_error` is an upper bound of ½‖x - H⁻¹v‖² in the norm of H; infinite if the solver computes none.
    """

    x: Tensor
    residual: float
    iterations: int
    solver: str
    converged: bool
    energy_error: float = math.inf


def solve(hessian: Tensor, vector: Tensor) -> Solution:
    """Solve Hx = v. NumericalFailure unless H is positive definite."""
    factor, failed_at = torch.linalg.cholesky_ex(hessian)
    if int(failed_at) != 0:
        raise NumericalFailure(
            "the Hessian is not positive definite, so this posterior is not near a minimum of its energy "
            "(a saddle, or two components on top of each other): train it to convergence, from another seed "
            "or with fewer components"
        )
    x = torch.cholesky_solve(vector.unsqueeze(1), factor).squeeze(1)
    residual = float((vector - hessian @ x).norm())
    if not math.isfinite(residual):
        raise NumericalFailure("solving with the Hessian overflowed: bring the data to the scale of the prior")
    return Solution(x=x, residual=residual, iterations=1, solver="cholesky", converged=True)
