"""Conjugate gradients for Hx = v: products with H only, as many as the tolerance requires.

With a lower bound μ of the least eigenvalue of H (of D^(-½)HD^(-½) if preconditioned by D) the error in the norm of H
is bounded by Gauss-Radau quadrature (G. Meurant and P. Tichý, 2013). With r_k the residual, z_k = D⁻¹r_k, γ_k the step
lengths and δ_(k+1) = r_(k+1)ᵀz_(k+1)/r_kᵀz_k,

    ‖x - x_k‖² ≤ γ̂_k r_kᵀz_k        γ̂_0 = 1/μ        γ̂_(k+1) = (γ̂_k - γ_k)/(μ(γ̂_k - γ_k) + δ_(k+1))

The proof supposes exact arithmetic. With rounding the iterates are close to those of exact conjugate gradients for a
matrix whose eigenvalues lie in tiny clusters around those of H (A. Greenbaum, 1989), so the bound keeps holding up to
rounding if μ lies below the clusters (G. Golub and Z. Strakoš, 1994). What the recursion loses, the difference between
r_k and the measured residual v - Hx_k, is added: it changes x by at most its norm in D⁻¹ divided by √μ.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers.cholesky import Solution


@dataclass(frozen=True)
class EnergyBound:
    """Request to bound ½‖x - H⁻¹v‖² in the norm of H, and to stop once it is at most `share` of ½vᵀx.

    `least_curvature` is μ > 0, at most the least eigenvalue of H, or of D^(-½)HD^(-½) with a preconditioner D.
    """

    least_curvature: float
    share: float

    def __post_init__(self) -> None:
        if not (0 < self.least_curvature < math.inf and 0 < self.share < math.inf):
            raise InvalidInput(
                f"least_curvature is {self.least_curvature} and share {self.share}: pass positive numbers"
            )


def solve_conjugate_gradients(
    matvec: Callable[[Tensor], Tensor],
    vector: Tensor,
    tolerance: float,
    max_iterations: int,
    diagonal: Tensor | None = None,
    on_iterate: Callable[[Tensor], None] | None = None,
    bound: EnergyBound | None = None,
) -> Solution:
    """Solve Hx = v for a symmetric positive definite H by Hestenes and Stiefel's method, from x = 0.

    Stops once ‖v - Hx‖ ≤ tolerance·‖v‖ by its own recursion, once `bound` is met, or after `max_iterations`. The
    returned residual is measured with one more product: compare it with what you need. With condition number κ the
    error in the norm of H falls by a factor of at least (√κ-1)/(√κ+1) per iteration. `diagonal` is a preconditioner:
    pass positive numbers close to the diagonal of H. `on_iterate` gets x after each product except the last, which
    only measures.
    """
    _check(tolerance, max_iterations, diagonal)
    x, r, iterations = vector.new_zeros(vector.shape), vector, 0
    z = p = _precondition(r, diagonal)
    energy, goal, coefficient = float(r.dot(z)), tolerance * float(vector.norm()), _first_coefficient(bound)
    converged = not float(r.norm()) > goal  # NaN is left to the measured residual
    while not converged and iterations < max_iterations:
        product = matvec(p)
        length = energy / _positive(float(p.dot(product)), iterations)
        x, r = x + length * p, r - length * product
        z = _precondition(r, diagonal)
        ratio = float(r.dot(z)) / energy
        p, energy, iterations = z + ratio * p, ratio * energy, iterations + 1
        coefficient = _next_coefficient(bound, coefficient, length, ratio)
        within_bound = bound is not None and coefficient * energy <= bound.share * float(vector.dot(x))
        converged = within_bound or float(r.norm()) <= goal
        if on_iterate is not None:
            on_iterate(x)
    measured = vector - matvec(x)
    residual = float(measured.norm())
    if not math.isfinite(residual):
        raise NumericalFailure("conjugate gradients met NaN or overflow: bring the data to the scale of the prior")
    lost = measured - r
    error = _energy_error(bound, coefficient * energy, float(lost.dot(_precondition(lost, diagonal))))
    return Solution(x, residual, iterations, "conjugate gradients", converged, error)


def _check(tolerance: float, max_iterations: int, diagonal: Tensor | None) -> None:
    if not 0 < tolerance < 1 or max_iterations < 1:
        raise InvalidInput(
            f"tolerance is {tolerance} and max_iterations {max_iterations}: "
            "pass a tolerance between 0 and 1 and at least one iteration"
        )
    if diagonal is not None and not bool((diagonal > 0).all()):
        raise InvalidInput("the preconditioning diagonal has entries that are not positive: pass numbers > 0")


def _precondition(vector: Tensor, diagonal: Tensor | None) -> Tensor:
    return vector if diagonal is None else vector / diagonal


def _first_coefficient(bound: EnergyBound | None) -> float:
    """Return γ̂_0; infinite without a bound."""
    return 1 / bound.least_curvature if bound is not None else math.inf


def _next_coefficient(bound: EnergyBound | None, coefficient: float, length: float, ratio: float) -> float:
    """Return γ̂_(k+1). Where rounding has used up γ̂_k - γ_k, start again from 1/μ, which holds for every residual."""
    ahead = coefficient - length
    if bound is None or not ahead > 0:
        return _first_coefficient(bound)
    return ahead / (bound.least_curvature * ahead + ratio)


def _energy_error(bound: EnergyBound | None, squared: float, lost: float) -> float:
    """Return ½(√(γ̂_k r_kᵀz_k) + √(lost/μ))², `lost` being the square of what the recursion lost of the residual."""
    if bound is None:
        return math.inf
    return 0.5 * (math.sqrt(squared) + math.sqrt(lost / bound.least_curvature)) ** 2


def _positive(curvature: float, iterations: int) -> float:
    """Return pᵀHp. Zero, a negative number or NaN means that H, as computed, is not positive definite."""
    if not 0 < curvature < math.inf:
        raise NumericalFailure(
            f"curvature {curvature:.3g} along direction {iterations + 1} of conjugate gradients: the Hessian is not "
            "positive definite here. Train to convergence first, or solve with a positive definite curvature"
        )
    return curvature
