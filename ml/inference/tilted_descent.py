"""Descent of a network's own tilted energy, and what may be left below the point that it reaches.

The first step is that of Gauss and Newton, by conjugate gradients, shortened until the energy itself falls. L-BFGS goes
on from there in units of the widths: the Gauss-Newton matrix overestimates the curvature where the network is softer
than its linearisation, and steps by it alone come to a halt too early. What may remain is the sum of

    ½ rᵀA⁻¹r      r = ∇F̃(Δ), A the Gauss-Newton matrix at Δ: what the network linearised at the end has below it
    f ρ/(1 - ρ)   the tail of the falls of successive rounds, f the last and ρ its ratio to the one before

Conjugate gradients approach ½rᵀA⁻¹r from below, and Gauss-Radau quadrature bounds it from above
(`ml.solvers.conjugate_gradients`), since A ≽ I/prior_std².
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models.tilted_energy import TiltedEnergy
from ml.solvers import EnergyBound, Solution, solve_conjugate_gradients

_TOLERANCE = 1e-12  # the bound on what is unsolved stops the solver long before
_UNSOLVED_GOAL = 0.1  # share of the decrement at which the solver stops
_MAX_PRECISION = 4.0  # of the preconditioner, in units of the prior's
_MAX_HALVINGS = 6
_ROUND = 15  # iterations of L-BFGS
_MAX_RATIO = 0.9


@dataclass(frozen=True)
class DescentLimits:
    """When a descent ends: rounds are used up, or a round's fall is small, as a share of the whole or in nats.

    `products` is the number of products with A that each of its two solves may take.
    """

    rounds: int
    products: int
    share: float = 0.0
    nats: float = 0.0


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, and how far the energy fell, in nats.

    `linearised` is ½rᵀA⁻¹r where it began, with what the solver may have left, and `remaining` what may be left below
    where it ended.
    """

    drift: Tensor
    fall: float
    linearised: float
    remaining: float
    rounds: int
    products: int


def descend_tilted(tilted: TiltedEnergy, start: Tensor, std: Tensor, limits: DescentLimits) -> Descent:
    """Descend from `start` as far as the limits allow. `std` are the posterior's widths, the units of the descent."""
    first = tilted.value(start)
    before, linearised = _solve(tilted, start, std, limits.products)
    search = _Search(tilted, std, *_first_step(tilted, start, first, before.x))
    falls = [first - search.value]
    while len(falls) <= limits.rounds and not _is_enough(falls, limits):
        falls.append(search.run_round())
    after, left = _solve(tilted, search.drift, std, limits.products)
    remaining = left + _tail(falls)
    products = before.iterations + after.iterations
    return Descent(search.drift, first - search.value, linearised, remaining, len(falls) - 1, products)


class _Search:
    """L-BFGS that remembers the lowest point it has seen."""

    def __init__(self, tilted: TiltedEnergy, std: Tensor, drift: Tensor, value: float) -> None:
        self._tilted, self._std, self._start = tilted, std, drift
        self.drift, self.value = drift, value
        self._position = torch.zeros_like(drift).requires_grad_()
        self._optimiser = torch.optim.LBFGS(
            [self._position],
            max_iter=_ROUND,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            history_size=2 * _ROUND,
            line_search_fn="strong_wolfe",
        )

    def run_round(self) -> float:
        """Return by how many nats a round lowers the energy."""
        before = self.value
        self._optimiser.step(self._evaluate)  # type: ignore[no-untyped-call]
        return before - self.value

    def _evaluate(self) -> Tensor:
        drift = self._start + self._std * self._position.detach()
        value, gradient = self._tilted.value_and_gradient(drift)
        if value < self.value:
            self.drift, self.value = drift, value
        self._position.grad = self._std * gradient
        return torch.tensor(value, dtype=torch.float64)


def _first_step(tilted: TiltedEnergy, start: Tensor, value: float, step: Tensor) -> tuple[Tensor, float]:
    """Return the point after the longest of some steps that lowers the energy, and its value; `start` if none does."""
    for halvings in range(_MAX_HALVINGS + 1):
        reached = start - 0.5**halvings * step
        lower = tilted.value(reached)
        if lower < value:
            return reached, lower
    return start, value


def _is_enough(falls: list[float], limits: DescentLimits) -> bool:
    return len(falls) > 1 and falls[-1] <= max(limits.share * sum(falls), limits.nats)


def _tail(falls: list[float]) -> float:
    """Return what further rounds would add if each fell by as much less than the one before as the last."""
    if len(falls) < 2 or falls[-1] <= 0:
        return 0.0
    ratio = min(_MAX_RATIO, falls[-1] / falls[-2]) if falls[-2] > 0 else _MAX_RATIO
    return falls[-1] * ratio / (1 - ratio)


def _solve(tilted: TiltedEnergy, drift: Tensor, std: Tensor, max_products: int) -> tuple[Solution, float]:
    """Return A⁻¹r as far as conjugate gradients came, and an upper bound of ½rᵀA⁻¹r."""
    gradient = tilted.value_and_gradient(drift)[1]
    diagonal, least_curvature = _preconditioner(std, tilted.energy.network.prior_std)
    solution = solve_conjugate_gradients(
        tilted.curvature(drift),
        gradient,
        _TOLERANCE,
        max_products,
        diagonal,
        bound=EnergyBound(least_curvature, _UNSOLVED_GOAL),
    )
    return solution, 0.5 * float(gradient.dot(solution.x)) + solution.energy_error


def _preconditioner(std: Tensor, prior_std: float) -> tuple[Tensor, float]:
    """Return a diagonal D, and a lower bound of the least eigenvalue of D^(-½)AD^(-½).

    A ≽ I/prior_std², hence the bound 1/(prior_std² max D). D = 1/σ² would need the fewest products, but the bound would
    be that of the narrowest weight. With D capped, LeNet-5 reaches the same Gauss-Radau bound in half of the products.
    """
    prior = prior_std**-2
    diagonal = std.square().reciprocal().clamp(prior, _MAX_PRECISION * prior)
    return diagonal, prior / float(diagonal.max())
