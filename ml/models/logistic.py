"""Bayesian logistic regression: p(y=1 | x, θ) = 1/(1+e^(-xᵀθ)), θ ~ N(0, prior_std² I). The label 0 or 1 comes last.

q(θ) = N(μ, diag σ²), with frozen noise (`frozen_noise`). With ℓ the log-loss and a = (x, x∘ε_t), so that xᵀθ_t = aᵀλ

    F(λ) = (1/M) Σ_t Σ_i ℓ(a_itᵀλ, y_i) + KL(q_λ ‖ prior)
    ∇F  = (1/M) Σ ℓ' a   + ∇KL                 ℓ'  = p - y
    ∇²F = (1/M) Σ ℓ'' aaᵀ + ∇²KL               ℓ'' = p(1-p)           ℓ''' = p(1-p)(1-2p)

ℓ is convex and its argument linear in λ, and the KL has curvature of at least 1/prior_std² in every direction. So F has
one minimum, which any training reaches and which a certificate refers to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ml.models import checks, regression
from ml.models.family import Expansion, Rounding
from ml.models.frozen_noise import check_draws, frozen_noise, pull_back, pull_back_curvature
from ml.models.newton import newton_step
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

_CHUNK_ENTRIES = 2**20  # in the largest intermediate tensor, (draws·dimensions, rows): 8 MB
_LARGEST_NOISE = 1e-3  # above it, errors are no longer first order
_LARGEST_THIRD = 1 / (6 * math.sqrt(3))  # maximum of |ℓ'''|, at p = ½ ± 1/√12
_LARGEST_FOURTH = 1 / 8  # maximum of |ℓ''''| = p(1-p)|1 - 6p(1-p)|, at p = ½


@dataclass(frozen=True, eq=False)
class LossTerms:
    """Loss of some rows under every draw, and its derivatives. All but `features` are (rows, draws)."""

    features: Tensor  # (rows, dimensions)
    negative_margin: Tensor  # (1-2y) aᵀλ: positive where the row is misclassified
    residual: Tensor  # ℓ' = (1-2y)/(1 + e^-negative_margin), which keeps its digits where p is near y
    curvature: Tensor  # ℓ''
    length: Tensor  # |a|
    error: Tensor  # bound on the rounding of aᵀλ

    def sizes(self) -> Tensor:
        """Σ|a|ℓ''e, Σ|a||ℓ'|, Σ|a|²ℓ''e and Σ|a|²ℓ'', the terms of the rounding bound."""
        weighted = self.length * self.curvature
        noise = weighted * self.error
        terms = (noise, self.length * self.residual, noise * self.length, weighted * self.length)
        return torch.stack([term.abs().sum() for term in terms])


@dataclass(frozen=True)
class LogisticRegression:
    dimensions: int
    prior_std: float
    draws: int
    seed: int

    def __post_init__(self) -> None:
        checks.check_count("dimensions", self.dimensions)
        checks.check_scale("prior_std", self.prior_std)
        check_draws(self.draws, self.seed)

    @property
    def parameter_count(self) -> int:
        return self.dimensions

    @property
    def classes(self) -> int:
        return 2

    def check_data(self, data: Tensor) -> None:
        checks.check_rows(data, self.dimensions)
        checks.check_labels(data, self.classes)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        checks.check_weights(posterior, (self.dimensions,))

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        return logsigmoid((2 * data[:, -1] - 1) * (data[:, :-1] @ theta))

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._prior.log_density(theta)

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Return weights of 0 with the widths of the curvature at 0, ¼Σx_j². F is convex, so the seed has no effect."""
        self.check_data(data)
        precision = data[:, :-1].square().sum(0) / 4 + self.prior_std**-2
        return MeanFieldGaussian(torch.zeros_like(precision), precision.rsqrt())

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """Make a damped Newton step, which descends from anywhere since F is convex."""
        return newton_step(self, self.expand(posterior, data), data).posterior

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        noise = self._noise(data)
        energy, gradient, curvature = self._prior.expand(posterior)
        gradients = noise.new_zeros(self.draws, self.dimensions)
        curvatures = noise.new_zeros(self.draws, self.dimensions, self.dimensions)
        sizes, error = noise.new_zeros(4), 0.0
        for chunk in self._loss_terms(posterior, data):
            energy -= float(logsigmoid(-chunk.negative_margin).sum()) / self.draws
            gradients += chunk.residual.T @ chunk.features
            curvatures += _gram(chunk.features, chunk.curvature)
            sizes += chunk.sizes()
            error = max(error, float(chunk.error.max()))
        gradient += pull_back(noise, gradients)
        hessian = pull_back_curvature(noise, curvatures)
        hessian.diagonal().add_(curvature)
        rounding = self._rounding(posterior, len(data), sizes / self.draws, error)
        return Expansion(posterior, energy, gradient, hessian, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        noise = self._noise(group)
        gradients = torch.zeros_like(noise)
        for chunk in self._loss_terms(posterior, group):
            gradients += chunk.residual.T @ chunk.features
        return pull_back(noise, gradients)

    def lipschitz(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
        """Return a bound of ‖∇³F‖ on the ball of that radius R.

        There aᵀλ moves by at most |a|R, so |ℓ'''| is at most c = min(|ℓ'''| + |a|R/8, 1/(6√3)). Along a unit v one row
        and draw contribute |ℓ'''||aᵀv|³ ≤ c|a| (aᵀv)²: the quadratic form of c|a| aaᵀ.
        """
        noise = self._noise(data)
        weighted_grams = noise.new_zeros(self.draws, self.dimensions, self.dimensions)
        total = 0.0
        for chunk in self._loss_terms(posterior, data):
            third = chunk.curvature * (chunk.negative_margin / 2).tanh().abs()
            worst = third + _LARGEST_FOURTH * (chunk.length * radius + chunk.error) + gamma(64)
            weight = worst.clamp(max=_LARGEST_THIRD) * chunk.length * (1 + gamma(self.dimensions + 64))
            weighted_grams += _gram(chunk.features, weight)
            total += float((weight * chunk.length.square()).sum()) / self.draws
        slack = gamma(self._depth(len(data))) * total
        return regression.third_derivative(
            pull_back_curvature(noise, weighted_grams), slack, self._prior.third_derivative(posterior, radius)
        )

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _noise(self, data: Tensor) -> Tensor:
        return frozen_noise(self.draws, self.dimensions, self.seed, data.device)

    def _loss_terms(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[LossTerms]:
        """Yield the loss terms in chunks of rows, which bounds memory."""
        noise = self._noise(data)
        theta = posterior.mean + posterior.std * noise
        size = posterior.mean.abs() + posterior.std * noise.abs()
        for rows in torch.split(data, self._chunk_rows):
            features, sign = rows[:, :-1], 1 - 2 * rows[:, -1:]
            negative_margin = sign * (features @ theta.T)
            error_probability = negative_margin.sigmoid()
            yield LossTerms(
                features,
                negative_margin,
                sign * error_probability,
                error_probability * (-negative_margin).sigmoid(),
                (features.square() @ (1 + noise.square()).T).sqrt(),
                gamma(self.dimensions + 16) * (features.abs() @ size.T),
            )

    @property
    def _chunk_rows(self) -> int:
        return max(1, _CHUNK_ENTRIES // (self.draws * self.dimensions))

    def _depth(self, rows: int) -> int:
        """Return how many roundings a sum over rows and draws goes through, those of its terms included."""
        return min(rows, self._chunk_rows) + math.ceil(rows / self._chunk_rows) + self.draws + 64

    def _rounding(self, posterior: MeanFieldGaussian, rows: int, sizes: Tensor, error: float) -> Rounding:
        """Return the a-priori error of an expansion; `error` is the largest e.

        If aᵀλ is off by e, then ℓ' and ℓ'' are off by ℓ''e, to first order, and by a few roundings of their own. So the
        rows' errors are at most (1/M) Σ |a|(ℓ''e + γ|ℓ'|) for the gradient and (1/M) Σ |a|² ℓ''(e + γ) for the Hessian,
        where γ counts the depth of the sum. The factor 2 covers higher orders.
        """
        if not error <= _LARGEST_NOISE:
            return Rounding(math.inf, math.inf)
        unit, prior_rounding = gamma(self._depth(rows)), self._prior.rounding(posterior)
        gradient_noise, gradient_size, hessian_noise, hessian_size = sizes.tolist()
        return Rounding(
            2 * (gradient_noise + unit * gradient_size) + prior_rounding.gradient,
            2 * (hessian_noise + unit * hessian_size) + prior_rounding.hessian,
        )


def _gram(features: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_i weights_it x_i x_iᵀ for each draw, by one product: (draws, dimensions, dimensions)."""
    weighted = features.T * weights.T.unsqueeze(1)
    return (weighted.flatten(0, 1) @ features).view(*weighted.shape[:2], -1)
