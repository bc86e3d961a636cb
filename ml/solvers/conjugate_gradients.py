"""Conjugate gradients for Hx = v: products with H only, as many as the tolerance requires."""

import math
from collections.abc import Callable

from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.cholesky import Solution


def solve_conjugate_gradients(
    matvec: Callable[[Tensor], Tensor],
    vector: Tensor,
    tolerance: float,
    max_iterations: int,
    diagonal: Tensor | None = None,
    on_iterate: Callable[[Tensor], None] | None = None,
) -> Solution:
    """Solve Hx = v for a symmetric positive definite H by Hestenes and Stiefel's method, from x = 0.

    Stops once ‖v - Hx‖ ≤ tolerance·‖v‖ by its own recursion, or after `max_iterations`. The returned residual is
    measured with one more product: compare it with what you need. With condition number κ the error in the norm of H
    falls by a factor of at least (√κ-1)/(√κ+1) per iteration. `diagonal` is a preconditioner: pass positive numbers
    close to the diagonal of H. `on_iterate` gets x after each product except the last, which only measures.
    """
    if not 0 < tolerance < 1 or max_iterations < 1:
        raise InvalidInput(
            f"tolerance is {tolerance} and max_iterations {max_iterations}: "
            "pass a tolerance between 0 and 1 and at least one iteration"
        )
    if diagonal is not None and not bool((diagonal > 0).all()):
        raise InvalidInput("the preconditioning diagonal has entries that are not positive: pass numbers > 0")
    x, r = vector.new_zeros(vector.shape), vector
    z = p = r if diagonal is None else r / diagonal
    goal, iterations = tolerance * float(vector.norm()), 0
    while float(r.norm()) > goal and iterations < max_iterations:
        product, energy = matvec(p), r.dot(z)
        alpha = energy / _positive(float(p.dot(product)), iterations)
        x, r = x + alpha * p, r - alpha * product
        z = r if diagonal is None else r / diagonal
        p = z + r.dot(z) / energy * p
        iterations += 1
        if on_iterate is not None:
            on_iterate(x)
    residual = float((vector - matvec(x)).norm())
    if not math.isfinite(residual):
        raise NumericalFailure("conjugate gradients met NaN or overflow: bring the data to the scale of the prior")
    return Solution(x, residual, iterations, solver="conjugate gradients", converged=float(r.norm()) <= goal)


def _positive(curvature: float, iterations: int) -> float:
    """Return pᵀHp. Zero, a negative number or NaN means that H, as computed, is not positive definite."""
    if not 0 < curvature < math.inf:
        raise NumericalFailure(
            f"curvature {curvature:.3g} along direction {iterations + 1} of conjugate gradients: the Hessian is not "
            "positive definite here. Train to convergence first, or solve with a positive definite curvature"
        )
    return curvature
