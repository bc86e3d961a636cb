"""Excess energy of a drift over the minimum of the linearised network, on a sample of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ml.certify.network.sample import NetworkSample
from ml.certify.network.validation import NORMAL_95, Validation
from ml.solvers import solve_conjugate_gradients

_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Minimum:
    """Minimum of the tilted energy on a sample, and the excess of the processed posterior over it, in nats.

    `drift` is where the minimum lies, `unsolved` how much the later half of the products added to the excess, and
    `step_energy` is ½ΔᵀAΔ of the processed posterior's own drift.
    """

    drift: Tensor
    excess: float
    unsolved: float
    standard_error: float
    step_energy: float
    products: int
    rows: int


def find_minimum(sample: NetworkSample, drift: Tensor, pull: Tensor, std: Tensor, max_products: int) -> Minimum:
    """Compute ½ rᵀA⁻¹r by conjugate gradients, which approach it from below."""
    product = sample.product(drift)
    residual, step_energy, excesses = product - pull, 0.5 * float(drift.dot(product)), [0.0]
    solution = solve_conjugate_gradients(
        sample.product,
        residual,
        _TOLERANCE,
        max_products,
        std.square().reciprocal(),
        lambda x: excesses.append(0.5 * float(residual.dot(x))),
    )
    unsolved = 0.0 if solution.converged else excesses[-1] - excesses[len(excesses) // 2]
    lowest = drift - solution.x
    start, end = sample.tangent(drift), sample.tangent(lowest)
    error = sample.standard_error(0.5 * (start.curvature(start) - end.curvature(end)))
    return Minimum(lowest, excesses[-1], unsolved, error, step_energy, solution.iterations, len(sample.rows))


def upper_limit(minimum: Minimum, validation: Validation) -> float:
    """Return the upper end of the excess, enlarged by the measured deviation from the linearised network."""
    linear = math.sqrt(minimum.excess + minimum.unsolved + NORMAL_95 * minimum.standard_error)
    return (linear + validation.deviation * math.sqrt(minimum.step_energy)) ** 2 / (1 - validation.softer)
