"""Damped Newton step on an energy, used at the end of training and in forgetting."""

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.models.family import Expansion, Family
from ml.solvers import solve

_MAX_HALVINGS = 30
# Two evaluations of one energy agree to this relative accuracy; a smaller rise is rounding.
_ENERGY_ROUNDING = 1e-12
_TO_BOUNDARY = 0.9  # share of the way to std 0 that a step may go


def newton_step(family: Family, at: Expansion, data: Tensor, step: Tensor | None = None) -> Expansion:
    """Return the expansion at λ - t H⁻¹∇F, with t = 1 halved until F does not rise.

    Every std keeps at least a tenth of its value. `step` is H⁻¹∇F, if it is known already.
    """
    if step is None:
        step = solve(at.hessian, at.gradient).x
    start = at.posterior.flat()
    length = _largest_step(at.posterior.std.flatten(), step[len(step) // 2 :])
    ceiling = at.energy + _ENERGY_ROUNDING * (1 + abs(at.energy))
    for _ in range(_MAX_HALVINGS):
        after = family.expand(at.posterior.with_flat(start - length * step), data)
        if after.energy <= ceiling:
            return after
        length /= 2
    raise NumericalFailure("no step along the Newton direction lowers the energy: retrain on the retained data instead")


def _largest_step(std: Tensor, decrease: Tensor) -> float:
    """Return the largest t up to 1 that keeps every std above a tenth of its value."""
    ratio = float(torch.max(decrease / std))
    return min(1.0, _TO_BOUNDARY / ratio) if ratio > 0 else 1.0
