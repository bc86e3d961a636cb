"""Bound on the third derivative of the expected log-loss of a row, on a ball of posteriors.

With t = a + vz, z ~ N(0, 1), and f(t) = log(1+e^t), let the posterior move along a unit direction, so that t changes at
the rate b = α + βz. A row contributes to the third derivative, as `logistic` derives,

    E f'''(t) (b³ + 3cb)        with  c ≥ 0,  β² + c = D,  |b| ≤ |x|√(1+z²),  |β| ≤ |x|

`third_bounds` returns A and B such that this is at most |x| (A α² + B D) at every point where t has moved by at most
r√(1+z²), for every α, β and c. The sums below are not quadratures but upper sums: each cell around a node counts with
the largest value of the integrand in it, anywhere on the ball. Both integrands first rise and then fall with |t| or
|z|, so their largest value is where the interval is nearest to their peak.

- v ≤ 4: at most |x| E|f'''|√(1+z²)(b² + 3c). In a cell of width h, t moves by vh/2 besides. With w_k the sum over the
  cells of max|f'''| max√(1+z²) ∫z^k φ, A = w₀ + |w₁| and B = max(w₂ + |w₁|, 3w₀).
- v > 4: f''' oscillates while the Gaussian hardly changes, so that most of the integral cancels. By parts in z it is

      (1/v) E f''(t) (z(b³ + 3cb) - 3β(b² + c))

  which is at most (|x|/v) E f''(t) (b²(3.5 + z²) + c(4.5 + 3z²)), as |z|√(1+z²) ≤ z² + ½. Since b² ≤ (1+z²)(α²+β²),
  that is at most (|x|/v²) (α² + D) ∫ f''(s) K(z) ds, with z = (s-a)/v and K(z) = φ(z)(4.5 + 4.5z² + z⁴). On the ball
  v is at least v - r, and z moves by at most r√(1+z²)/(v-r). Where that is too much, |f'''| ≤ 1/(6√3) serves, with
  √(1+z²) ≤ (3+z²)/√8: A = √2/(6√3) and B = 3A.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ml.models.logistic_expectations import LOGISTIC_STEP, by_width, gaussian_nodes, logistic_nodes

LARGEST_THIRD = 1 / (6 * math.sqrt(3))
"""Maximum of |f'''|, where f' = ½ ± 1/√12."""

_THIRD_PEAK = math.log(2 + math.sqrt(3))  # where |f'''| is largest
_KERNEL_PEAK = math.sqrt((math.sqrt(18.25) - 0.5) / 2)  # where K is largest
# What lies beyond the last cells, and the rounding of the cells' moments.
_SLACK = 2.0**-44


def third_bounds(centre: Tensor, width: Tensor, movement: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and B of each row, given its a, v and r."""
    mean_bound, width_bound = by_width(_bounds, width, centre, width, movement).unbind(1)
    return mean_bound, width_bound


def _bounds(step: float | None, centre: Tensor, width: Tensor, movement: Tensor) -> Tensor:
    if step is None:
        return _bounds_if_wide(centre, width, movement)
    z, root, cells = _cells(step, centre.device)
    t = torch.addcmul(centre.unsqueeze(1), width.unsqueeze(1), z).abs()
    reach = width.unsqueeze(1) * (step / 2) + movement.unsqueeze(1) * root
    worst = _third(_nearest(_THIRD_PEAK, t, reach))
    even, cross, squared = (worst @ moments for moments in cells)
    return torch.stack([even + cross.abs(), torch.maximum(squared + cross.abs(), 3 * even)], 1) + _SLACK


def _bounds_if_wide(centre: Tensor, width: Tensor, movement: Tensor) -> Tensor:
    nodes, _ = logistic_nodes(centre.device)
    half_cell, narrowest = LOGISTIC_STEP / 2 / width, width - movement
    masses = (nodes + LOGISTIC_STEP / 2).sigmoid() - (nodes - LOGISTIC_STEP / 2).sigmoid()
    z = ((nodes - centre.unsqueeze(1)) / width.unsqueeze(1)).abs()
    rate = (movement / narrowest).unsqueeze(1)
    reach = rate * (1 + z.square()).sqrt() + half_cell.unsqueeze(1) * (1 + rate)
    bound = (_kernel(_nearest(_KERNEL_PEAK, z, reach)) @ masses + _SLACK) / narrowest.square()
    cap = math.sqrt(2) * LARGEST_THIRD
    capped = ~((narrowest > 0) & (bound < 2 * cap))
    return torch.stack([bound.masked_fill(capped, cap), bound.masked_fill(capped, 3 * cap)], 1)


def _nearest(peak: float, distance: Tensor, reach: Tensor) -> Tensor:
    """Return the point of [distance - reach, distance + reach] that is nearest to the peak."""
    return torch.minimum(torch.maximum(distance - reach, torch.full_like(distance, peak)), distance + reach)


def _third(t: Tensor) -> Tensor:
    """Return |f'''| at t ≥ 0."""
    decay = torch.exp(-t)
    return decay * (1 - decay) / (1 + decay) ** 3


def _kernel(z: Tensor) -> Tensor:
    squared = z.square()
    return torch.exp(-squared / 2) / math.sqrt(2 * math.pi) * (4.5 + squared * (4.5 + squared))


@functools.lru_cache(maxsize=16)
def _cells(step: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes, max √(1+z²) in the cell around each, and that times ∫φ, ∫zφ and ∫z²φ over it."""
    z, _ = gaussian_nodes(step, device)
    root = (1 + (z.abs() + step / 2).square()).sqrt()
    left, right = z - step / 2, z + step / 2
    density_left, density_right = (torch.exp(-end.square() / 2) / math.sqrt(2 * math.pi) for end in (left, right))
    masses = (torch.erfc(left / math.sqrt(2)) - torch.erfc(right / math.sqrt(2))) / 2
    moments = (masses, density_left - density_right, masses + left * density_left - right * density_right)
    return z, root, root * torch.stack(moments)
