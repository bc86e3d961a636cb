"""Proved bounds for the energy of a Gaussian mixture: third derivative on a ball, rounding of the first two.

Both are worst cases, so a certificate that uses them holds for any data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ml.models import regression
from ml.models.family import Rounding, width_scale
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

if TYPE_CHECKING:
    from ml.models.gmm import GaussianMixture, Responsibilities

CHUNK_ROWS = 4096

_LARGEST_NOISE = 1e-3  # above it, errors are no longer first order


def third_derivative_bound(model: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
    """Return B with |∇³F[v,v,v]| ≤ |v| vᵀBv in scaled coordinates, on the ball of that radius R around λ.

    A unit step v there, with t_k = |v_k|, moves λ along D_k v_k in block k, D_k = diag(s_k), and ‖D_k‖ = D̄_k is the
    largest scale of component k. With b_k = u_k·D_k v_k, c_k = |D_k v_k|² and cumulants under φ, the third derivative
    of log Σ exp(-½|u_k|²) is κ₃(b) - 3 Cov(b, c). For an independent copy b' of b, |κ₃(b)| ≤ E|b - b'|³ by Jensen, and
    Cov(b, c) = ½ E(b - b')(c - c'). Let p_k = D̄_k|u_k|. Then |b_k| ≤ p_k t_k and 0 ≤ c_k ≤ D̄_k²t_k², so that, with
    t_k² + t_l² ≤ 1,

        |b_k - b_l|³ ≤ (p_k² + p_l²)^(3/2) (t_k² + t_l²) ≤ √2 (p_k³ + p_l³)(t_k² + t_l²)        (power mean)
        |b_k - b_l||c_k - c_l| ≤ (p_k + p_l)(D̄_k²t_k² + D̄_l²t_l²)

    and one row contributes at most

        Σ_{k≠l} φ_k φ_l [√2 (p_k³ + p_l³)(t_k² + t_l²) + 3/2 (p_k + p_l)(D̄_k²t_k² + D̄_l²t_l²)]
            = Σ_k t_k² φ_k (2√2 [p³]_k + 3 D̄_k² [p]_k)          [z]_k = (1 - φ_k) z_k + Σ_{l≠k} φ_l z_l

    Over the ball |u_k| grows by at most D̄_k R. So the rows' part of B is diagonal, the same for all entries of block k.
    """
    largest_scale = width_scale(posterior).amax(1, keepdim=True)
    coefficients = torch.zeros_like(largest_scale.squeeze(1))
    for _, chunk in model.responsibilities(posterior, data):
        coefficients += _third_derivative(chunk, largest_scale, radius)
    coefficients *= 1 + gamma(2 * len(data) + 64)  # relative rounding of a sum of nonnegative terms
    row_bound = coefficients.repeat_interleave(model.dimensions).repeat(2).diag()
    prior_bound = WeightPrior(model.prior_std).third_derivative(posterior, radius)
    return regression.third_derivative_bound(row_bound, 0.0, prior_bound)


def _third_derivative(chunk: Responsibilities, scale: Tensor, radius: float) -> Tensor:
    """Return the coefficients of t_k², summed over rows, for the worst responsibilities in the ball; `scale` is D̄.

    Each exponent a_k = -½|u_k|² moves by at most S = max_k p_k R + D̄_k²R²/2. Since ∂φ_k = φ_k (∂a_k - Σ φ ∂a), the
    product of two responsibilities grows by at most e^(4S).
    """
    lengths, noise = chunk.squared_norms.sqrt(), _exponent_error(chunk.offsets.shape[1])
    shift = ((lengths + scale * (radius / 2)) * (scale * radius)).amax(0)
    shift += (chunk.squared_norms.amax(0) + 1) * noise
    p = (lengths + scale * radius) * scale
    terms = chunk.phi * (_spread(chunk.phi, 2 * math.sqrt(2) * p**3) + 3 * scale.square() * _spread(chunk.phi, p))
    return terms @ shift.mul_(4).exp_()


def _spread(phi: Tensor, z: Tensor) -> Tensor:
    """Return an upper bound of [z]_k = (1 - φ_k) z_k + Σ_{l≠k} φ_l z_l."""
    weighted = phi * z
    # Inflate before the difference, which cancels where one φ_k is 1. A sum over K components carries γ_K.
    return (z + weighted.sum(0)) * (1 + gamma(len(phi) + 32)) - 2 * weighted


def _exponent_error(dimensions: int) -> float:
    """Return the error of a computed -½|u_k|², a sum of 2d nonnegative terms, in units of 1 + |u_k|²."""
    return gamma(2 * dimensions + 8)


def responsibility_noise(chunk: Responsibilities) -> Tensor:
    """Return what an error of 1 + |u_k|² in each exponent does to the gradient and to the Hessian, to first order.

    With q = |u|² it changes φ_k by at most t_k = φ_k [1 + q]_k: nothing where one component owns the row. So Σ φ_k u_k
    changes by A = Σ t_k |u_k|, and Σ φ_k (P_k - u_k u_kᵀ) + (Σφu)(Σφu)ᵀ by Σ t_k (1 + q_k) + 2A Σ φ_k |u_k|.
    """
    lengths, sizes = chunk.squared_norms.sqrt(), chunk.squared_norms + 1
    changes = chunk.phi * _spread(chunk.phi, sizes)
    gradient = (changes * lengths).sum(0)
    hessian = changes.flatten().dot(sizes.flatten()) + 2 * gradient.dot((chunk.phi * lengths).sum(0))
    return torch.stack([gradient.sum(), hessian])


def rounding(
    model: GaussianMixture, posterior: MeanFieldGaussian, rows: int, first: float, largest: float, noise: Tensor
) -> Rounding:
    """Return the a-priori error of an expansion over that many rows.

    `first` is Σ φ_k q_k over rows and components, q = |u|², `largest` is the largest q, and `noise` the sum of
    `responsibility_noise`.

    A computed exponent is off by at most γ(1 + q_k), and φ_k by the factor 1 ± 2γ_K besides. Each row's terms carry
    these errors and that of a few products; a sum adds γ_depth of the sum of absolute values, in any order. With
    M_p = Σ_k φ_k q_k^p for a row, E[q^½] E[q] ≤ E[q^(3/2)] and its like, the rows' errors are at most

        gradient: 2γ noise + c M_½        Hessian: 2γ noise + c (1 + 3 M_1)        c = 4γ + 2γ_K + γ_depth

    The factor 2 covers higher orders, and Cauchy-Schwarz bounds Σ M_½. The largest scale takes both to scaled
    coordinates.
    """
    unit = _exponent_error(model.dimensions)
    if unit * (1 + largest) > _LARGEST_NOISE:
        return Rounding(math.inf, math.inf)
    depth = gamma(min(rows, CHUNK_ROWS) + math.ceil(rows / CHUNK_ROWS) + 16)
    c = 4 * unit + 2 * gamma(model.components + 16) + depth
    gradient_noise, hessian_noise = noise.tolist()
    largest_scale = float(width_scale(posterior).max())
    gradient = 2 * unit * gradient_noise + c * math.sqrt(rows * first)
    hessian = 2 * unit * hessian_noise + c * (rows + 3 * first)
    prior = WeightPrior(model.prior_std).rounding(posterior)
    return Rounding(largest_scale * gradient + prior.gradient, largest_scale**2 * hessian + prior.hessian)
