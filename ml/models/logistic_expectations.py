"""Gaussian expectations of the log-loss f(t) = log(1+e^t) and its derivatives, by quadrature to rounding accuracy.

t = b + vz with z ~ N(0, 1); φ and Φ are the density and the distribution function of z. f' = 1/(1+e^-t) is the logistic
distribution function, and f'' = f'(1-f') its density.

Both rules are trapezoidal. For an integrand analytic in the strip |Im| < c, with ∫|g(x+iy)|dx ≤ M there, the error with
step h is at most 2M/(e^(2πc/h) - 1) (L. Trefethen and J. Weideman, The exponentially convergent trapezoidal rule, SIAM
Review 2014, theorem 5.1). The steps below make that at most 2^-60. They have few binary digits, so nodes are exact.

- `GaussianRule`, for v ≤ 4: E g(t) = ∫ g(b+vz) φ(z) dz. Where |Im t| ≤ θ = 0.9π, |1+e^-t| ≥ sin θ, hence |f'| ≤ κ and
  |f''| ≤ κ² with κ = 1/sin θ; and |φ(x+iy)| = φ(x)e^(y²/2). With c = θ/v, M ≤ κ² e^(c²/2) (2+c²) for f' and for
  f''·(1, z, z²-1). Beyond |z| = 9.25 there is less than 2^-60 left.
- `LogisticRule`, for v > 4, whatever v: f is the convolution of f'' with max(·, 0), so with z(s) = (s-b)/v

      E f = v ∫ f''(s) (φ(z) - zΦ(-z)) ds     E f' = ∫ f''(s) Φ(-z) ds     E f'' z^k = (1/v) ∫ f''(s) φ(z) z^k ds

  In the strip |Im s| ≤ θ, ∫|f''| ≤ θ/sin θ < 9.2, and |Im z| ≤ θ/4 keeps |Φ| and |φ(z)(z²-1)| below 1.4: M < 13. Beyond
  |s| = 43.75 there is less than 2^-60 left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

QUADRATURE_ERROR = 2.0**-59
"""Absolute error of the quadrature of f', f'', f''z and f''(z²-1); those of f'' times v are as exact if v > 4."""
MOST_NODES = 225

_WIDTHS = (0.5, 1.0, 2.0, 4.0)
_STEPS = (35 / 64, 22 / 64, 12 / 64, 6 / 64, None)  # of the Gaussian rule, up to each of the widths
LOGISTIC_STEP = 25 / 64
_GAUSSIAN_RANGE, _LOGISTIC_RANGE = 9.25, 43.75
_CHUNK_ROWS = (4096, 2048, 1024, 512, 512)  # of each rule: rows × nodes are about 1 MB, which fits a cache
_SQRT_2PI = math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Expectations:
    """Expectations of each row."""

    loss: Tensor  # E f
    residual: Tensor  # E f'
    curvature: Tensor  # E f''
    cross: Tensor  # E f''z
    stretch: Tensor  # E f''(z²-1)
    wide_size: Tensor  # E f''(1+z²)², the unit of errors in b and v

    @property
    def size(self) -> Tensor:
        """E f''(1+z²), the unit of rounding."""
        return self.stretch + 2 * self.curvature


class Rule(Protocol):
    """Quadrature of some rows of similar width. z is (nodes,), or (rows, nodes) where each row has its own."""

    z: Tensor

    def losses(self) -> Tensor:
        """Return E f of each row."""

    def residuals(self) -> Tensor:
        """Return E f' of each row."""

    def curvatures(self) -> Tensor:
        """Return (rows, nodes) terms k with E f''(t)g(z) = Σ k g(z)."""


class GaussianRule:
    """Nodes spread over z, which suit f as long as v is not large."""

    def __init__(self, centre: Tensor, width: Tensor, step: float) -> None:
        self.z, self.weights = gaussian_nodes(step, centre.device)
        self.t = torch.addcmul(centre.unsqueeze(1), width.unsqueeze(1), self.z)
        self.slope = self.t.sigmoid()

    def losses(self) -> Tensor:
        return -(logsigmoid(-self.t) @ self.weights)

    def residuals(self) -> Tensor:
        return self.slope @ self.weights

    def curvatures(self) -> Tensor:
        # 1 - slope would lose its digits where t is large.
        return self.slope * (-self.t).sigmoid() * self.weights


class LogisticRule:
    """Nodes spread over t = s, around 0, where f bends: the Gaussian is smooth on that scale."""

    def __init__(self, centre: Tensor, width: Tensor) -> None:
        self.nodes, self.weights = logistic_nodes(centre.device)
        self.width = width
        self.z = (self.nodes - centre.unsqueeze(1)) / width.unsqueeze(1)
        self.density = torch.exp(-self.z.square() / 2) / _SQRT_2PI
        self.tail = torch.erfc(self.z / math.sqrt(2)) / 2

    def losses(self) -> Tensor:
        return self.width * ((self.density - self.z * self.tail) @ self.weights)

    def residuals(self) -> Tensor:
        return self.tail @ self.weights

    def curvatures(self) -> Tensor:
        return self.density * self.weights / self.width.unsqueeze(1)


def expect(centre: Tensor, width: Tensor) -> Expectations:
    """Return the expectations at the centres b and widths v, which are vectors of one entry for each row."""
    return Expectations(*_measure(_expectations, centre, width).unbind(1))


def expect_slopes(centre: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return E f' and E f'' of each row, all that a gradient needs."""
    residual, curvature = _measure(_slopes, centre, width).unbind(1)
    return residual, curvature


def _expectations(rule: Rule) -> Tensor:
    terms, z_squared = rule.curvatures(), rule.z.square()
    factors = (rule.z, z_squared - 1, (1 + z_squared).square())
    moments = [_sum(terms, factor) for factor in factors]
    return torch.stack([rule.losses(), rule.residuals(), terms.sum(1), *moments], 1)


def _slopes(rule: Rule) -> Tensor:
    return torch.stack([rule.residuals(), rule.curvatures().sum(1)], 1)


def _sum(terms: Tensor, factor: Tensor) -> Tensor:
    return terms @ factor if factor.ndim == 1 else (terms * factor).sum(1)


def _measure(measure: Callable[[Rule], Tensor], centre: Tensor, width: Tensor) -> Tensor:
    return by_width(lambda step, *columns: measure(_build(step, *columns)), width, centre, width)


def _build(step: float | None, centre: Tensor, width: Tensor) -> Rule:
    return LogisticRule(centre, width) if step is None else GaussianRule(centre, width, step)


def by_width(compute: Callable[..., Tensor], width: Tensor, *columns: Tensor) -> Tensor:
    """Return what `compute` returns of every row, (rows, values), with the step that suits its width.

    `compute` takes the step of the Gaussian rule, or None for the logistic rule, and these columns of some rows.
    """
    rules = torch.bucketize(width, width.new_tensor(_WIDTHS))
    used = sorted(set(rules.tolist()))
    if len(used) == 1:
        return _in_chunks(compute, used[0], columns)
    parts = [(rules == rule).nonzero().squeeze(1) for rule in used]
    values = [_in_chunks(compute, rule, [c[at] for c in columns]) for rule, at in zip(used, parts, strict=True)]
    return torch.cat(values)[torch.cat(parts).argsort()]


def _in_chunks(compute: Callable[..., Tensor], rule: int, columns: Sequence[Tensor]) -> Tensor:
    """Compute rows of one rule chunk by chunk, which bounds memory."""
    chunks = zip(*(torch.split(column, _CHUNK_ROWS[rule]) for column in columns), strict=True)
    return torch.cat([compute(_STEPS[rule], *chunk) for chunk in chunks])


def _nodes(span: float, step: float, device: torch.device) -> Tensor:
    """Return the multiples of the step up to the first that is not below the span, on both sides."""
    last = math.ceil(span / step)
    return step * torch.arange(-last, last + 1, dtype=torch.float64, device=device)


@functools.lru_cache(maxsize=16)
def gaussian_nodes(step: float, device: torch.device) -> tuple[Tensor, Tensor]:
    z = _nodes(_GAUSSIAN_RANGE, step, device)
    return z, step * torch.exp(-z.square() / 2) / _SQRT_2PI


@functools.lru_cache(maxsize=4)
def logistic_nodes(device: torch.device) -> tuple[Tensor, Tensor]:
    s = _nodes(_LOGISTIC_RANGE, LOGISTIC_STEP, device)
    return s, LOGISTIC_STEP * s.sigmoid() * (-s).sigmoid()
