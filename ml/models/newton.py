"""A damped Newton step on an energy: training is polished by it, forgetting refined."""

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.models.family import Expansion, Family
from ml.solvers import solve

_MAX_HALVINGS = 30
# Two evaluations of one energy agree to this relative accuracy; a smaller rise says nothing.
_ENERGY_ROUNDING = 1e-12
_TO_BOUNDARY = 0.9


def newton_step(family: Family, at: Expansion, data: Tensor, step: Tensor | None = None) -> Expansion:
    """λ - t H⁻¹∇F, t = 1 halved until F does not rise; every std keeps at least a tenth of itself.

    `step` is H⁻¹∇F, where it is known already.
    """
    if step is None:
        step = solve(at.hessian, at.gradient).x
    start = at.posterior.flat()
    length = _longest(at.posterior.std.flatten(), step[len(step) // 2 :])
    ceiling = at.energy + _ENERGY_ROUNDING * (1 + abs(at.energy))
    for _ in range(_MAX_HALVINGS):
        after = family.expand(at.posterior.with_flat(start - length * step), data)
        if after.energy <= ceiling:
            return after
        length /= 2
    raise NumericalFailure("no step along the Newton direction lowers the energy: retrain on the retained data instead")


def _longest(std: Tensor, decrease: Tensor) -> float:
    ratio = float(torch.max(decrease / std))
    return min(1.0, _TO_BOUNDARY / ratio) if ratio > 0 else 1.0
