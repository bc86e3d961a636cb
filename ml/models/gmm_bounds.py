"""Proved bounds for the energy of a Gaussian mixture: third derivative on a ball, rounding of the first two.

Both are worst cases, so a certificate that uses them holds for any data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from ml.models.family import Rounding
from ml.numerics.rounding import UNIT, gamma
from ml.posteriors.mean_field import MeanFieldGaussian

if TYPE_CHECKING:
    from ml.models.gmm import GaussianMixture, Responsibilities

CHUNK_ROWS = 4096

_LARGEST_NOISE = 1e-3  # above it, errors are no longer first order


def lipschitz(model: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
    """Return a bound of ‖∇³F‖ on the ball of that radius R around λ.

    Along λ + tv, |v| = 1, with b_k = u_k·v_k, c_k = |v_k|² = t_k² and cumulants under φ, the third derivative of
    log Σ exp(-½|u_k|²) is κ₃(b) - 3 Cov(b, c). For an independent copy b' of b, |κ₃(b)| ≤ E|b - b'|³ by Jensen, and
    Cov(b, c) = ½ E(b - b')(c - c'). As |b_k - b_l| ≤ |u_k| t_k + |u_l| t_l and t_k² + t_l² ≤ 1, one row contributes at
    most

        Σ_{k≠l} φ_k φ_l (z_k + z_l)(t_k² + t_l²) = Σ_k t_k² 2φ_k [(1 - φ_k) z_k + Σ_{l≠k} φ_l z_l]

    with z = √2 |u|³ + 3/2 |u|, where √2 is from the power mean (|u_k|² + |u_l|²)^(3/2) ≤ √2 (|u_k|³ + |u_l|³). So all
    rows together contribute at most the largest of the K coefficients of t_k².

    Over the ball |u_k| grows by at most R, so by at most the factor 1 + R/|s_k|. The prior adds at most 2/s³, from
    -log s, at the smallest s in the ball. It is of order n^(3/2) and outgrows the rows' part.
    """
    smallest = float(posterior.std.min()) - radius
    if not smallest > 0:
        return math.inf
    coefficients = posterior.mean.new_zeros(model.components)
    for _, chunk in model.responsibilities(posterior, data):
        coefficients += _third_derivative(chunk, radius)
    growth = 1 + radius / float(posterior.std.square().sum(1).min().sqrt())
    inflation = 1 + gamma(2 * len(data) + 64)  # relative rounding of a sum of nonnegative terms
    return (float(coefficients.max()) * growth**3 + 2 / smallest / smallest / smallest) * inflation


def _third_derivative(chunk: Responsibilities, radius: float) -> Tensor:
    """Return the coefficients of t_k², summed over rows, for the worst responsibilities in the ball.

    Each exponent a_k = -½|u_k|² moves by at most S = max_k |u_k|R + R²/2. Since ∂φ_k = φ_k (∂a_k - Σ φ ∂a), the product
    of two responsibilities grows by at most e^(4S).
    """
    lengths = chunk.squared_norms.sqrt()
    longest = lengths.amax(0)
    noise = _exponent_error(chunk.offsets.shape[1])
    shift = longest * radius + (longest.square() * noise + (noise + radius**2 / 2))
    z = lengths * (math.sqrt(2) * chunk.squared_norms + 1.5)
    weighted = chunk.phi * z
    # Inflate before the difference, which cancels where one φ_k is 1.
    both = (z + weighted.sum(0)) * (1 + 32 * UNIT)
    return (chunk.phi * (both - 2 * weighted)) @ shift.mul_(4).exp_().mul_(2)


def _exponent_error(dimensions: int) -> float:
    """Return the error of a computed -½|u_k|², a sum of 2d nonnegative terms, in units of 1 + |u_k|²."""
    return gamma(2 * dimensions + 8)


def rounding(
    model: GaussianMixture, posterior: MeanFieldGaussian, rows: int, first: float, second: float, largest: float
) -> Rounding:
    """Return the a-priori error of an expansion over that many rows, from moments of q = |u|².

    `first` and `second` are Σ φ_k q_k and Σ φ_k q_k² over rows and components, `largest` is the largest q.

    A computed exponent is off by at most e_k = γ(1 + q_k), so φ_k by the factor 1 ± 2(e_k + Σφe + γ_K). Each row's
    terms carry that error and that of a few products; a sum adds γ_depth of the sum of absolute values, in any order.
    With M_p = Σ_k φ_k q_k^p for a row, and E[q^½] E[q] ≤ E[q^(3/2)] and its like, the rows' errors are at most

        gradient: 4γ M_(3/2) + c M_½        Hessian: γ (4 M_1 + 12 M_2) + c (1 + 3 M_1)        c = 4γ + 2γ_K + γ_depth

    and Cauchy-Schwarz bounds the half powers by the two moments.
    """
    noise = _exponent_error(model.dimensions)
    if noise * (1 + largest) > _LARGEST_NOISE:
        return Rounding(math.inf, math.inf)
    depth = gamma(min(rows, CHUNK_ROWS) + math.ceil(rows / CHUNK_ROWS) + 16)
    c = 4 * noise + 2 * gamma(model.components + 16) + depth
    precision, inverse = model.prior_std**-2, 1 / float(posterior.std.min())
    gradient = 4 * noise * math.sqrt(first * second) + c * math.sqrt(rows * first)
    gradient += depth * (precision * float(posterior.flat().norm()) + inverse * math.sqrt(posterior.std.numel()))
    hessian = noise * (4 * first + 12 * second) + c * (rows + 3 * first)
    hessian += depth * (precision + inverse**2)
    return Rounding(gradient, hessian)
