"""Bayesian linear regression: y ~ N(xᵀw, noise_std²), w ~ N(0, prior_std² I). The target y is the last column.

q(w) = N(m, diag s²). With ν = noise_std and σ = prior_std

    h(λ, (x, y)) = [(y - xᵀm)² + Σ_j x_j² s_j²] / (2ν²) + ½ log 2πν²
    ∇_m F = Σ (xᵀm - y) x/ν² + m/σ²             ∇_s F = (Σ x_j²/ν² + 1/σ²) s_j - 1/s_j
    ∇²_m F = P = Σ xxᵀ/ν² + I/σ²                ∇²_s F = P_jj + 1/s_j²                    ∇_m∇_s F = 0

so the optimum is known: m = P⁻¹ Σ yx/ν², s_j² = 1/P_jj. The exact posterior is N(m, P⁻¹): mean field has its mean and
its conditional variances. Only -log s is not quadratic, so ‖∇³F‖ ≤ 2/(min w - R)³ on a ball of radius R, w the scaled
widths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ml.models import checks, regression
from ml.models.family import Expansion, Rounding, width_scale
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve


@dataclass(frozen=True)
class LinearRegression:
    dimensions: int
    noise_std: float
    prior_std: float
    convex: ClassVar[bool] = True
    energy_name: ClassVar[str] = "the negative evidence lower bound (ELBO)"

    def __post_init__(self) -> None:
        checks.check_count("dimensions", self.dimensions)
        checks.check_scale("noise_std", self.noise_std)
        checks.check_scale("prior_std", self.prior_std)

    @property
    def parameter_count(self) -> int:
        return self.dimensions

    def check_data(self, data: Tensor) -> None:
        checks.check_rows(data, self.dimensions)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        checks.check_weights(posterior, (self.dimensions,))

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        residual = (data[:, -1] - data[:, :-1] @ theta) / self.noise_std
        return -0.5 * residual.square() - math.log(self.noise_std * math.sqrt(2 * math.pi))

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._prior.log_density(theta)

    def optimum(self, data: Tensor) -> MeanFieldGaussian:
        """Return the minimum of the energy in closed form: the target of training and of forgetting."""
        self.check_data(data)
        precision = self._precision(data)
        mean = solve(precision, data[:, -1] @ data[:, :-1] / self.noise_std**2).x
        return MeanFieldGaussian(mean, precision.diagonal().rsqrt())

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Return the prior. The energy is convex, so the seed has no effect."""
        self.check_data(data)
        mean = data.new_zeros(self.dimensions)
        return MeanFieldGaussian(mean, torch.full_like(mean, self.prior_std))

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        return self.optimum(data)

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        features, residual = data[:, :-1], data[:, :-1] @ posterior.mean - data[:, -1]
        energy, gradient, curvature = self._prior.expand(posterior)
        moments = features.T @ features / self.noise_std**2
        std_gradient = moments.diagonal() * posterior.std
        energy += 0.5 * float(residual.dot(residual)) / self.noise_std**2 + 0.5 * float(std_gradient.dot(posterior.std))
        energy += len(data) * math.log(self.noise_std * math.sqrt(2 * math.pi))
        gradient += torch.cat([residual @ features / self.noise_std**2, std_gradient])
        hessian = torch.diag(curvature + torch.cat([torch.zeros_like(std_gradient), moments.diagonal()]))
        hessian[: self.dimensions, : self.dimensions] += moments
        rounding = self._rounding(posterior, data, residual)
        return Expansion(posterior, energy, gradient, (hessian + hessian.T) / 2, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        features, residual = group[:, :-1], group[:, :-1] @ posterior.mean - group[:, -1]
        return torch.cat([residual @ features, features.square().sum(0) * posterior.std]) / self.noise_std**2

    def invariant_directions(self, posterior: MeanFieldGaussian) -> None:
        return None

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        row_bound = data.new_zeros(2 * self.dimensions, 2 * self.dimensions)
        return regression.third_derivative_bound(row_bound, 0.0, self._prior.third_derivative(posterior, radius))

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _precision(self, data: Tensor) -> Tensor:
        features = data[:, :-1]
        precision = features.T @ features / self.noise_std**2
        precision.diagonal().add_(self.prior_std**-2)
        return (precision + precision.T) / 2

    def _rounding(self, posterior: MeanFieldGaussian, data: Tensor, residual: Tensor) -> Rounding:
        """Return the a-priori error of an expansion, with x̃ = x∘scale and w the scaled widths.

        A computed r = xᵀm - y is off by e = γ_(d+2) (Σ_j |x_j m_j| + |y|), and a sum over n rows by γ_n of its absolute
        values. So the rows' errors are at most 1/ν² times Σ |x̃| (e + γ_n|r|) and γ_n |Σ x̃²∘w| for the gradient, and
        2 γ_n Σ |x̃|² for the Hessian.
        """
        features, scale = data[:, :-1], width_scale(posterior)
        squares = features.square() * scale.square()
        lengths = squares.sum(1).sqrt()
        errors = gamma(self.dimensions + 32) * (features.abs() @ posterior.mean.abs() + data[:, -1].abs())
        unit = gamma(len(data) + self.dimensions + 32)
        mean_error = float(lengths.dot(errors + unit * (residual.abs() + errors)))
        std_error = unit * float((squares.sum(0) * posterior.std / scale).norm())
        prior_rounding, variance = self._prior.rounding(posterior), self.noise_std**2
        return Rounding(
            (mean_error + std_error) / variance + prior_rounding.gradient,
            2 * unit * float(squares.sum()) / variance + prior_rounding.hessian,
        )
