"""Truncated Neumann series for Hx = v, as in the paper: a fixed number of products with H."""

import math
from collections.abc import Callable

from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.cholesky import Solution

_CONVERGED = 1e-2  # of ‖v‖: the recursion has a fixed length and no tolerance of its own


def solve_neumann(
    matvec: Callable[[Tensor], Tensor],
    vector: Tensor,
    num_terms: int,
    scale: float,
    on_iterate: Callable[[Tensor], None] | None = None,
) -> Solution:
    """Iterate x_j = v + (I - cH) x_{j-1} from x_0 = v and return c·x_J ("Efficient Implementation" of the paper).

    `num_terms` is J, the number of products with H; one more measures the residual. `scale` is c: the series converges
    only if 0 < cλ < 2 for every eigenvalue λ of H, and J terms recover the share 1 - (1-cλ)^(J+1) of the solution
    along that eigenvector, so a flat direction (cλ near 0) hardly moves, however safe c is.

    If the series converges, the residual v - cH x_j never exceeds v: a larger one reveals divergence. `on_iterate` gets
    c·x_j after each product except the last, which only measures, including the iterate that reveals divergence.
    """
    if num_terms < 1 or not 0 < scale < math.inf:
        raise InvalidInput(f"num_terms is {num_terms} and scale {scale}: pass at least one term and a positive scale")
    largest = float(vector.norm())
    x, residual = vector, vector - scale * matvec(vector)
    for products in range(1, num_terms + 1):
        x = x + residual
        if on_iterate is not None:
            on_iterate(scale * x)
        _check(float(residual.norm()), largest, products)
        residual = vector - scale * matvec(x)
    _check(float(residual.norm()), largest, num_terms + 1)
    final = float(residual.norm())
    return Solution(scale * x, final, iterations=num_terms, solver="neumann", converged=final <= _CONVERGED * largest)


def _check(residual: float, largest: float, products: int) -> None:
    if not residual <= largest * (1 + 1e-9):
        raise NumericalFailure(
            f"the Neumann recursion diverges: after {products} products its residual is {residual:.3g}, more than "
            f"the {largest:.3g} at its start. Pass a smaller scale, below 2 over the largest curvature; if that "
            "does not help, the curvature is negative somewhere: train to convergence first"
        )
