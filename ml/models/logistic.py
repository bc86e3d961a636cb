"""Bayesian logistic regression: p(y=1 | x, θ) = 1/(1+e^(-xᵀθ)), θ ~ N(0, prior_std² I). The label 0 or 1 comes last.

q(θ) = N(μ, diag σ²), with frozen noise (`frozen_noise`). With ℓ the log-loss and a = (x, x∘ε_t), so that xᵀθ_t = aᵀλ

    F(λ) = (1/M) Σ_t Σ_i ℓ(a_itᵀλ, y_i) + KL(q_λ ‖ prior)
    ∇F  = (1/M) Σ ℓ' a   + ∇KL                 ℓ'  = p - y
    ∇²F = (1/M) Σ ℓ'' aaᵀ + ∇²KL               ℓ'' = p(1-p)           ℓ''' = p(1-p)(1-2p)

ℓ is convex and its argument linear in λ, and the KL curves by at least 1/prior_std² in every direction: F has one
minimum, and a certificate speaks of what any training reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ml.models import regression
from ml.models.family import Expansion, Rounding
from ml.models.frozen_noise import check_draws, frozen_noise, pull_back, pull_back_curvature
from ml.models.newton import newton_step
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

_CHUNK_ENTRIES = 2**20  # of the largest intermediate, (draws·dimensions, rows): 8 MB
_LARGEST_NOISE = 1e-3  # beyond it "relative error" stops being first order
_LARGEST_THIRD = 1 / (6 * math.sqrt(3))  # of |ℓ'''|, where p = ½ ± 1/√12
_LARGEST_FOURTH = 1 / 8  # of |ℓ''''| = p(1-p)|1 - 6p(1-p)|, where p = ½


@dataclass(frozen=True, eq=False)
class Seen:
    """Some rows under every draw; each but the first is (rows, draws)."""

    features: Tensor  # (rows, dimensions)
    against: Tensor  # (1-2y) aᵀλ, how far the row is on the wrong side
    residual: Tensor  # ℓ' = (1-2y)/(1 + e^-against), which loses no digits to a p near y
    curvature: Tensor  # ℓ''
    length: Tensor  # |a|
    error: Tensor  # how far a computed aᵀλ can be from the true one

    def sizes(self) -> Tensor:
        """Σ|a|ℓ''e, Σ|a||ℓ'|, Σ|a|²ℓ''e and Σ|a|²ℓ'', which the rounding bound is made of."""
        bent = self.length * self.curvature
        terms = (bent * self.error, self.length * self.residual, bent * self.error * self.length, bent * self.length)
        return torch.stack([term.abs().sum() for term in terms])


@dataclass(frozen=True)
class LogisticRegression:
    dimensions: int
    prior_std: float
    draws: int
    seed: int

    def __post_init__(self) -> None:
        regression.check_count("dimensions", self.dimensions)
        regression.check_scale("prior_std", self.prior_std)
        check_draws(self.draws, self.seed)

    @property
    def parameter_count(self) -> int:
        return self.dimensions

    @property
    def classes(self) -> int:
        return 2

    def check_data(self, data: Tensor) -> None:
        regression.check_rows(data, self.dimensions)
        regression.check_labels(data, self.classes)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        regression.check_weights(posterior, (self.dimensions,))

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        return logsigmoid((2 * data[:, -1] - 1) * (data[:, :-1] @ theta))

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._prior.log_density(theta)

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Weights of 0, as wide as the curvature there, ¼Σx_j², says. F is convex, so the seed decides nothing."""
        self.check_data(data)
        precision = data[:, :-1].square().sum(0) / 4 + self.prior_std**-2
        return MeanFieldGaussian(torch.zeros_like(precision), precision.rsqrt())

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """A damped Newton step: F is convex, so it descends from anywhere."""
        return newton_step(self, self.expand(posterior, data), data).posterior

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        noise = self._noise(data)
        energy, gradient, curvature = self._prior.expand(posterior)
        pull = noise.new_zeros(self.draws, self.dimensions)
        bend = noise.new_zeros(self.draws, self.dimensions, self.dimensions)
        sizes, error = noise.new_zeros(4), 0.0
        for seen in self._look(posterior, data):
            energy -= float(logsigmoid(-seen.against).sum()) / self.draws
            pull += seen.residual.T @ seen.features
            bend += _gram(seen.features, seen.curvature)
            sizes += seen.sizes()
            error = max(error, float(seen.error.max()))
        gradient += pull_back(noise, pull)
        hessian = pull_back_curvature(noise, bend)
        hessian.diagonal().add_(curvature)
        rounding = self._rounding(posterior, len(data), sizes / self.draws, error)
        return Expansion(posterior, energy, gradient, hessian, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        noise = self._noise(group)
        pull = torch.zeros_like(noise)
        for seen in self._look(posterior, group):
            pull += seen.residual.T @ seen.features
        return pull_back(noise, pull)

    def lipschitz(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
        """On the ball aᵀλ moves by at most |a|R, so |ℓ'''| there is at most c = min(|ℓ'''| + |a|R/8, 1/(6√3)).

        Along a unit v one row and draw contribute |ℓ'''||aᵀv|³ ≤ c|a| (aᵀv)²: the quadratic form of c|a| aaᵀ.
        """
        noise = self._noise(data)
        bend = noise.new_zeros(self.draws, self.dimensions, self.dimensions)
        total = 0.0
        for seen in self._look(posterior, data):
            third = seen.curvature * (seen.against / 2).tanh().abs()
            moved = third + _LARGEST_FOURTH * (seen.length * radius + seen.error) + gamma(64)
            weight = moved.clamp(max=_LARGEST_THIRD) * seen.length * (1 + gamma(self.dimensions + 64))
            bend += _gram(seen.features, weight)
            total += float((weight * seen.length.square()).sum()) / self.draws
        slack = gamma(self._depth(len(data))) * total
        return regression.third_derivative(
            pull_back_curvature(noise, bend), slack, self._prior.third_derivative(posterior, radius)
        )

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _noise(self, data: Tensor) -> Tensor:
        return frozen_noise(self.draws, self.dimensions, self.seed, data.device)

    def _look(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[Seen]:
        noise = self._noise(data)
        theta = posterior.mean + posterior.std * noise
        size = posterior.mean.abs() + posterior.std * noise.abs()
        for rows in torch.split(data, self._chunk_rows):
            features, flip = rows[:, :-1], 1 - 2 * rows[:, -1:]
            against = flip * (features @ theta.T)
            wrong = against.sigmoid()
            yield Seen(
                features,
                against,
                flip * wrong,
                wrong * (-against).sigmoid(),
                (features.square() @ (1 + noise.square()).T).sqrt(),
                gamma(self.dimensions + 16) * (features.abs() @ size.T),
            )

    @property
    def _chunk_rows(self) -> int:
        return max(1, _CHUNK_ENTRIES // (self.draws * self.dimensions))

    def _depth(self, rows: int) -> int:
        """How many roundings a sum over rows and draws can go through, with those of its terms."""
        return min(rows, self._chunk_rows) + math.ceil(rows / self._chunk_rows) + self.draws + 64

    def _rounding(self, posterior: MeanFieldGaussian, rows: int, sizes: Tensor, error: float) -> Rounding:
        """If aᵀλ is off by e, then ℓ' and ℓ'' are off by ℓ''e, to first order, and by a few roundings of their own.

        So the rows' errors are at most (1/M) Σ |a|(ℓ''e + γ|ℓ'|) for the gradient and (1/M) Σ |a|² ℓ''(e + γ) for the
        Hessian, where γ counts the depth of the sum. The factor 2 is for what is not first order; `error` is the
        largest e.
        """
        if not error <= _LARGEST_NOISE:
            return Rounding(math.inf, math.inf)
        each, of_prior = gamma(self._depth(rows)), self._prior.rounding(posterior)
        gradient_noise, gradient_size, hessian_noise, hessian_size = sizes.tolist()
        return Rounding(
            2 * (gradient_noise + each * gradient_size) + of_prior.gradient,
            2 * (hessian_noise + each * hessian_size) + of_prior.hessian,
        )


def _gram(features: Tensor, weights: Tensor) -> Tensor:
    """Σ_i weights_it x_i x_iᵀ for each draw, as one product: (draws, dimensions, dimensions)."""
    weighted = features.T * weights.T.unsqueeze(1)
    return (weighted.flatten(0, 1) @ features).view(*weighted.shape[:2], -1)
