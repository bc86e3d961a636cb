"""Excess energy of a drift over the minimum of the linearised network, on a sample of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ml.certify.network.sample import NetworkSample
from ml.certify.network.validation import NORMAL_95, Validation
from ml.solvers import EnergyBound, solve_conjugate_gradients

_TOLERANCE = 1e-12  # the bound on what is unsolved stops the solver long before
_UNSOLVED_GOAL = 0.1  # share of the excess at which the solver stops; a certificate allows more
_MAX_PRECISION = 4.0  # of the preconditioner, in units of the prior's


@dataclass(frozen=True, eq=False)
class Minimum:
    """Minimum of the tilted energy on a sample, and the excess of the processed posterior over it, in nats.

    `drift` is where the minimum lies and `step_energy` is ½ΔᵀAΔ of the processed posterior's own drift. ½rᵀA⁻¹r is at
    least `excess` and at most `excess + unsolved`, by the Gauss-Radau bound of the solver.
    """

    drift: Tensor
    excess: float
    unsolved: float
    standard_error: float
    step_energy: float
    products: int
    rows: int


def find_minimum(sample: NetworkSample, drift: Tensor, pull: Tensor, std: Tensor, max_products: int) -> Minimum:
    """Compute ½ rᵀA⁻¹r by conjugate gradients, which approach it from below, until little of it can be missing."""
    product = sample.product(drift)
    residual, step_energy = product - pull, 0.5 * float(drift.dot(product))
    diagonal, least_curvature = _preconditioner(std, sample.energy.network.prior_std)
    solution = solve_conjugate_gradients(
        sample.product,
        residual,
        _TOLERANCE,
        max_products,
        diagonal,
        bound=EnergyBound(least_curvature, _UNSOLVED_GOAL),
    )
    lowest, excess = drift - solution.x, 0.5 * float(residual.dot(solution.x))
    start, end = sample.tangent(drift), sample.tangent(lowest)
    error = sample.standard_error(0.5 * (start.curvature(start) - end.curvature(end)))
    return Minimum(lowest, excess, solution.energy_error, error, step_energy, solution.iterations, len(sample.rows))


def _preconditioner(std: Tensor, prior_std: float) -> tuple[Tensor, float]:
    """Return a diagonal D, and a lower bound of the least eigenvalue of D^(-½)AD^(-½).

    A ≽ I/prior_std², hence the bound 1/(prior_std² max D). D = 1/σ² would need the fewest products, but the bound would
    be that of the narrowest weight. With D capped, LeNet-5 reaches the same Gauss-Radau bound in half of the products.
    """
    prior = prior_std**-2
    diagonal = std.square().reciprocal().clamp(prior, _MAX_PRECISION * prior)
    return diagonal, prior / float(diagonal.max())


def upper_limit(minimum: Minimum, validation: Validation) -> float:
    """Return the upper end of the excess, enlarged by the measured deviation from the linearised network."""
    linear = math.sqrt(minimum.excess + minimum.unsolved + NORMAL_95 * minimum.standard_error)
    return (linear + validation.deviation * math.sqrt(minimum.step_energy)) ** 2 / (1 - validation.softer)
