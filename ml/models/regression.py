"""Gaussian prior of the regressions' weights, w_j ~ N(0, prior_std²), and the bound on their third derivative.

With q(w) = N(m, diag s²) and σ = prior_std the prior's part of the energy is

    f(λ) = KL(q_λ ‖ prior) = Σ_j (m_j² + s_j²)/(2σ²) - log s_j + log σ - ½

No column of ones is added: for an intercept, include one among the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models.family import Rounding, width_scale
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian


@dataclass(frozen=True)
class WeightPrior:
    """N(0, std²) on every weight, and the part f of the energy that comes from it."""

    std: float

    def log_density(self, weights: Tensor) -> Tensor:
        log_normaliser = math.log(self.std * math.sqrt(2 * math.pi))
        return -0.5 * (weights / self.std).square().sum() - weights.numel() * log_normaliser

    def expand(self, posterior: MeanFieldGaussian) -> tuple[float, Tensor, Tensor]:
        """Return f, ∇f and the diagonal of ∇²f, which is a diagonal matrix."""
        flat, inverse, precision = posterior.flat(), posterior.std.flatten().reciprocal(), self.std**-2
        energy = float(0.5 * precision * flat.dot(flat) + inverse.log().sum())
        zeros = torch.zeros_like(inverse)
        gradient = precision * flat - torch.cat([zeros, inverse])
        curvature = precision + torch.cat([zeros, inverse.square()])
        return energy + len(inverse) * (math.log(self.std) - 0.5), gradient, curvature

    def rounding(self, posterior: MeanFieldGaussian) -> Rounding:
        """Return the error of ∇f and ∇²f as computed by `expand`, and of adding them to the rows' part."""
        scale, precision = width_scale(posterior), self.std**-2
        inverse = scale / posterior.std
        sizes = float((scale * posterior.mean).norm() + (scale * posterior.std).norm())
        gradient, hessian = precision * sizes + inverse.norm(), precision * scale.square() + inverse.square()
        return Rounding(gamma(16) * float(gradient), gamma(16) * float(hessian.max()))

    def third_derivative(self, posterior: MeanFieldGaussian, radius: float) -> Tensor:
        """Return the largest third derivative of f by a scaled width w on the ball: 2/(w - R)³, infinite if w may be 0.

        One entry for each weight.
        """
        narrowest = ((posterior.std / width_scale(posterior)).flatten() - radius) * (1 - gamma(8))
        return torch.where(narrowest > 0, 2 / narrowest**3, math.inf) * (1 + gamma(16))


def third_derivative_bound(row_bound: Tensor, slack: float, prior_bound: Tensor) -> Tensor:
    """Return B with |∇³F[v,v,v]| ≤ |v| vᵀBv on a ball, in scaled coordinates; infinite if a part of it is.

    `row_bound` is A, computed with a spectral error of at most `slack`, and `prior_bound` is c, such that on the ball

        |∇³(F-f)[v,v,v]| ≤ |v| vᵀAv     |∂³f/∂w_j³| ≤ c_j  for every width w_j

    As |v_j|³ ≤ |v| v_j², B = A + diag(0, c) + slack·I.
    """
    bound = row_bound.clone()
    bound.diagonal()[len(prior_bound) :] += prior_bound
    # Each entry of the diagonal has been rounded twice.
    bound.diagonal().add_(slack + gamma(4) * (bound.diagonal().abs() + slack))
    finite = math.isfinite(slack) and bool(torch.isfinite(bound).all())
    return bound if finite else torch.full_like(bound, math.inf)
