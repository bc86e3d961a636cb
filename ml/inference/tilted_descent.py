"""Descent of a network's own tilted energy, and what may be left below the point that it reaches.

Each step is that of Gauss and Newton, by conjugate gradients, shortened until the energy itself falls. At every point

    ½ rᵀA⁻¹r        r = ∇F̃(Δ),  A the Gauss-Newton matrix at Δ

is what the network linearised there has below it. Conjugate gradients approach it from below, and Gauss-Radau
quadrature bounds it from above (`ml.solvers.conjugate_gradients`), since A ≽ I/prior_std².
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ml.models.tilted_energy import TiltedEnergy
from ml.solvers import EnergyBound, Solution, solve_conjugate_gradients

_TOLERANCE = 1e-12  # the bound on what is unsolved stops the solver long before
_UNSOLVED_GOAL = 0.1  # share of the decrement at which the solver stops
_MAX_PRECISION = 4.0  # of the preconditioner, in units of the prior's
_SUFFICIENT = 1e-4  # share of the predicted fall that a step must achieve (L. Armijo, 1966)
_MAX_HALVINGS = 6


@dataclass(frozen=True)
class DescentLimits:
    """When a descent ends: steps or products are used up, or little remains, as a share of the fall or in nats."""

    steps: int
    products: int
    share: float = 0.0
    nats: float = 0.0


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, and how far the energy fell, in nats.

    `linearised` is ½rᵀA⁻¹r where it began, `remaining` where it ended: both with what the solver may have left.
    """

    drift: Tensor
    fall: float
    linearised: float
    remaining: float
    steps: int
    products: int


def descend_tilted(tilted: TiltedEnergy, start: Tensor, std: Tensor, limits: DescentLimits) -> Descent:
    """Descend from `start` as far as the limits allow. `std` are the posterior's widths, for the preconditioner."""
    drift, first = start, tilted.value(start)
    value, steps = first, 0
    solution, predicted = _solve(tilted, drift, std, limits.products)
    linearised = remaining = predicted + solution.energy_error
    products = solution.iterations
    while steps < limits.steps and products < limits.products and remaining > _enough(limits, first - value):
        lower = _lower(tilted, drift, value, solution.x, predicted)
        if lower is None:
            break
        drift, value = lower
        solution, predicted = _solve(tilted, drift, std, limits.products - products)
        remaining, steps, products = predicted + solution.energy_error, steps + 1, products + solution.iterations
    return Descent(drift, first - value, linearised, remaining, steps, products)


def _enough(limits: DescentLimits, fall: float) -> float:
    return max(limits.share * fall, limits.nats)


def _solve(tilted: TiltedEnergy, drift: Tensor, std: Tensor, max_products: int) -> tuple[Solution, float]:
    """Return A⁻¹r as far as conjugate gradients came, and ½rᵀA⁻¹r of it."""
    gradient = tilted.gradient(drift)
    diagonal, least_curvature = _preconditioner(std, tilted.energy.network.prior_std)
    solution = solve_conjugate_gradients(
        tilted.curvature(drift),
        gradient,
        _TOLERANCE,
        max_products,
        diagonal,
        bound=EnergyBound(least_curvature, _UNSOLVED_GOAL),
    )
    return solution, 0.5 * float(gradient.dot(solution.x))


def _lower(
    tilted: TiltedEnergy, drift: Tensor, value: float, step: Tensor, predicted: float
) -> tuple[Tensor, float] | None:
    """Return the point after the longest of some steps that lowers the energy, and its value; None if none does."""
    for halvings in range(_MAX_HALVINGS + 1):
        length = 0.5**halvings
        reached = drift - length * step
        lower = tilted.value(reached)
        if lower < value - _SUFFICIENT * length * predicted:
            return reached, lower
    return None


def _preconditioner(std: Tensor, prior_std: float) -> tuple[Tensor, float]:
    """Return a diagonal D, and a lower bound of the least eigenvalue of D^(-½)AD^(-½).

    A ≽ I/prior_std², hence the bound 1/(prior_std² max D). D = 1/σ² would need the fewest products, but the bound would
    be that of the narrowest weight. With D capped, LeNet-5 reaches the same Gauss-Radau bound in half of the products.
    """
    prior = prior_std**-2
    diagonal = std.square().reciprocal().clamp(prior, _MAX_PRECISION * prior)
    return diagonal, prior / float(diagonal.max())
