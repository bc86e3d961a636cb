"""Generalised Gauss-Newton curvature of a classifier (N. Schraudolph, 2002): ∇²U without its indefinite part.

    G = Σ_i J_iᵀ (diag p_i - p_i p_iᵀ) J_i       J_i = ∂ logits(x_i)/∂γ,  p_i = softmax(logits)

G is positive semi-definite, since diag p - ppᵀ is the covariance of a one-hot label, and a Gaussian prior adds its
precision in every direction. So conjugate gradients never meet negative curvature on the sum, for any γ. If the logits
are linear in γ, G is the Hessian of the log-loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import linearize, vjp

Outputs = Callable[[Tensor], Tensor]
"""Maps γ to the logits of some rows: (rows, classes)."""
Product = Callable[[Tensor], Tensor]


def gauss_newton(outputs: Sequence[Outputs], at: Tensor, keep: bool = True) -> Product:
    """Return v ↦ Gv, summed over `outputs`, without forming the matrix.

    With `keep` the network is linearised once instead of for each product, which doubles the speed: a solve takes
    dozens of products at the same γ. It costs memory: the activations of all rows stay alive as long as the product.
    Without `keep` only those of one element of `outputs` are in memory at a time.
    """
    linearised = [_linearise(part, at) for part in outputs] if keep else None

    def product(vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for forward, backward, p in linearised or (_linearise(part, at) for part in outputs):
            change = forward(vector)
            total += backward(p * (change - (p * change).sum(1, keepdim=True)))[0]
        return total

    return product


def _linearise(outputs: Outputs, at: Tensor) -> tuple[Product, Callable[[Tensor], tuple[Tensor]], Tensor]:
    """Return v ↦ J·v, u ↦ Jᵀ·u and p."""
    with warnings.catch_warnings():
        # torch's tracing uses functions that torch itself deprecates, and warns about its own constants.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", "Attempted to insert a get_attr Node", UserWarning)
        logits, forward = linearize(outputs, at)
    return forward, vjp(outputs, at)[1], logits.softmax(1)
