"""The generalised Gauss-Newton curvature of a classifier (N. Schraudolph, 2002): ∇²U without its indefinite part.

    G = Σ_i J_iᵀ (diag p_i - p_i p_iᵀ) J_i       J_i = ∂ logits(x_i)/∂γ,  p_i = softmax(logits)

It is positive semi-definite, since diag p - ppᵀ is the covariance of a one-hot label; a Gaussian prior adds its
precision in every direction. So conjugate gradients never meet negative curvature on the sum, wherever γ is. Where the
logits are linear in γ, G is the Hessian of the log-loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import linearize, vjp

Outputs = Callable[[Tensor], Tensor]
"""γ to the logits of some rows: (rows, classes)."""
Product = Callable[[Tensor], Tensor]


def gauss_newton(outputs: Sequence[Outputs], at: Tensor, keep: bool = True) -> Product:
    """v ↦ Gv, summed over `outputs`: the matrix is never formed.

    With `keep` the network is linearised once, not for each product, which makes a product twice as fast: solving takes
    dozens at one γ. The price is memory: the activations of every row stay until the product is dropped. Without, only
    those of one of the outputs are there at a time.
    """
    kept = [_linearised(one, at) for one in outputs] if keep else None

    def product(vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for along, back, p in kept or (_linearised(one, at) for one in outputs):
            moved = along(vector)
            total += back(p * (moved - (p * moved).sum(1, keepdim=True)))[0]
        return total

    return product


def _linearised(outputs: Outputs, at: Tensor) -> tuple[Product, Callable[[Tensor], tuple[Tensor]], Tensor]:
    """J·v, Jᵀ·u and p."""
    with warnings.catch_warnings():
        # torch's own tracing uses what torch deprecates, and warns of its own constants.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", "Attempted to insert a get_attr Node", UserWarning)
        logits, along = linearize(outputs, at)
    return along, vjp(outputs, at)[1], logits.softmax(1)
