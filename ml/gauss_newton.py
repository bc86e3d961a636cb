"""The generalised Gauss-Newton curvature of a classifier (N. Schraudolph, 2002): ∇²U without its indefinite part.

    G = Σ_i J_iᵀ (diag p_i - p_i p_iᵀ) J_i - ∇² log p(θ)       J_i = ∂ logits(x_i, θ)/∂θ,  p_i = softmax(logits)

The first part is positive semi-definite, since diag p - ppᵀ is the covariance of a one-hot label; a Gaussian prior adds
1/prior_std² in every direction. So conjugate gradients never meet negative curvature on G, wherever θ is. Where the
logits are linear in θ, G is the Hessian of U.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from ml.errors import InvalidInput
from ml.models.likelihood import Likelihood

_ROWS_AT_ONCE = 2048


class Classifier(Likelihood, Protocol):
    """A likelihood that is the softmax of its outputs."""

    def outputs(self, theta: Tensor, data: Tensor) -> Tensor:
        """The logits of each row: (n, classes)."""


@dataclass(frozen=True, eq=False)
class GaussNewton:
    """G over `data`. `rows_at_once` bounds memory: no more rows than this are under differentiation together."""

    classifier: Classifier
    data: Tensor
    rows_at_once: int = _ROWS_AT_ONCE

    def __post_init__(self) -> None:
        if self.rows_at_once < 1:
            raise InvalidInput(f"rows_at_once is {self.rows_at_once}: let at least one row into memory")

    def product(self, theta: Tensor, vector: Tensor) -> Tensor:
        """Gv, by one forward and one backward differentiation: the matrix is never formed."""
        total = -_along(grad(self.classifier.log_prior), theta, vector)[1]
        for rows in torch.split(self.data, self.rows_at_once):
            outputs = functools.partial(self.classifier.outputs, data=rows)
            logits, moved = _along(outputs, theta, vector)
            p = logits.softmax(1)
            bent = p * (moved - (p * moved).sum(1, keepdim=True))
            total += vjp(outputs, theta)[1](bent)[0]
        return total


def _along(function: Callable[[Tensor], Tensor], theta: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """f(θ) and its derivative along v, in forward mode: half the time of two backward passes."""
    with warnings.catch_warnings():
        # torch's own forward mode uses what torch deprecates.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        value, derivative = jvp(function, (theta,), (vector,))[:2]
    return value, derivative
