"""Bayesian softmax regression, the Bayesian last layer: p(y=k | x, θ) ∝ e^(θ_k·x), θ ~ N(0, prior_std² I).

The label 0..classes-1 is the last column. q(θ) = N(μ, diag σ²), (classes × dimensions), with frozen noise. With
a_k = (x, x∘ε_tk), so that the logit z_k = θ_tk·x is a_kᵀλ_k, p = softmax(z), and A the block-diagonal matrix of the a_k

    F(λ) = (1/M) Σ_t Σ_i [log Σ_k e^(z_k) - z_y] + KL(q_λ ‖ prior)
    ∇F  = (1/M) Σ A (p - e_y) + ∇KL            ∇²F = (1/M) Σ A (diag p - ppᵀ) Aᵀ + ∇²KL

log-sum-exp is convex and z linear in λ, and the KL curves by at least 1/prior_std² in every direction: one minimum.

Third derivative. Along a unit v the logits move by b_k = a_kᵀv_k, and d³/dt³ log Σ e^(z+tb) is the third cumulant of b
under p, E(b-Eb)³. The range of b is at most max |a_k||v_k| + |a_l||v_l| ≤ ρ = max √(|a_k|² + |a_l|²) ≤ √2 max|a_k|,
over k ≠ l. Given its mean, E(b-Eb)³ is linear in the distribution, so extreme for one on two points, where it is
p(1-p)(1-2p)ρ³, at most ρ³/(6√3). That is the worst over all p. As |b-Eb| ≤ ρ it is also at most ρ Var b, which knows
how sure p is. Moving the point along a unit u changes Var b at the rate E(c-Ec)(b-Eb)², c_k = a_kᵀu_k, again at most
ρ Var b; so on a ball of radius R it grows by no more than e^(ρR), and a row and draw contribute at most ρ e^(ρR) Var b:
the quadratic form of their own Hessian, so much heavier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models import regression
from ml.models.family import Expansion, Rounding
from ml.models.frozen_noise import check_draws, frozen_noise, pull_back, pull_back_curvature
from ml.models.newton import newton_step
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

_CHUNK_ROWS = 1024
_LARGEST_NOISE = 1e-3  # beyond it "relative error" stops being first order


@dataclass(frozen=True, eq=False)
class Seen:
    """Some rows under one draw."""

    features: Tensor  # x: (rows, dimensions)
    labels: Tensor  # y: (rows, 1)
    log_p: Tensor  # (rows, classes)
    p: Tensor  # (rows, classes)
    length: Tensor  # max_k |a_k|: (rows,)
    reach: Tensor  # ρ, how far apart a unit step can move two logits: (rows,)
    error: Tensor  # how far a computed logit can be from the true one: (rows,)

    def loss(self) -> float:
        return -float(self.log_p.gather(1, self.labels).sum())

    def pull(self) -> Tensor:
        """Σ (p - e_y) ⊗ x."""
        residual = self.p.scatter_add(1, self.labels, torch.full_like(self.log_p, -1.0))
        return (residual.T @ self.features).flatten()

    def sizes(self) -> Tensor:
        """Σ|a|e(1-|p|²), Σ|a|, Σ|a|²e(1-|p|²) and Σ|a|², which the rounding bound is made of."""
        noise = self.length * self.error * (1 - self.p.square().sum(1)).clamp(min=0)
        terms = (noise, self.length, noise * self.length, self.length.square())
        return torch.stack([term.sum() for term in terms])


@dataclass(frozen=True)
class SoftmaxRegression:
    dimensions: int
    classes: int
    prior_std: float
    draws: int
    seed: int

    def __post_init__(self) -> None:
        regression.check_count("dimensions", self.dimensions)
        regression.check_count("classes", self.classes, least=2)
        regression.check_scale("prior_std", self.prior_std)
        check_draws(self.draws, self.seed)

    @property
    def parameter_count(self) -> int:
        return self.classes * self.dimensions

    def check_data(self, data: Tensor) -> None:
        regression.check_rows(data, self.dimensions)
        regression.check_labels(data, self.classes)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        regression.check_weights(posterior, (self.classes, self.dimensions))

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        logits = data[:, :-1] @ theta.reshape(self.classes, self.dimensions).T
        return logits.log_softmax(1).gather(1, data[:, -1:].long()).squeeze(1)

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._prior.log_density(theta)

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Weights of 0, as wide as the curvature there says. F is convex, so the seed decides nothing."""
        self.check_data(data)
        share = 1 / self.classes
        precision = share * (1 - share) * data[:, :-1].square().sum(0) + self.prior_std**-2
        std = precision.rsqrt().expand(self.classes, -1).clone()
        return MeanFieldGaussian(torch.zeros_like(std), std)

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """A damped Newton step: F is convex, so it descends from anywhere."""
        return newton_step(self, self.expand(posterior, data), data).posterior

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        """The Hessian of each draw is gathered over (classes·dimensions)², and only then lifted to λ."""
        noises = self._noise(data)
        energy, gradient, curvature = self._prior.expand(posterior)
        pull = torch.zeros_like(noises)
        bend = noises.new_zeros(self.draws, self.parameter_count, self.parameter_count)
        sizes, error = noises.new_zeros(4), 0.0
        for t, seen in self._look(posterior, data):
            energy += seen.loss() / self.draws
            pull[t] += seen.pull()
            _add_curvature(bend[t], seen, torch.ones_like(seen.length))
            sizes += seen.sizes()
            error = max(error, float(seen.error.max()))
        gradient += pull_back(noises, pull)
        hessian = pull_back_curvature(noises, bend)
        hessian.diagonal().add_(curvature)
        rounding = self._rounding(posterior, len(data), sizes / self.draws, error)
        return Expansion(posterior, energy, gradient, hessian, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        noises = self._noise(group)
        pull = torch.zeros_like(noises)
        for t, seen in self._look(posterior, group):
            pull[t] += seen.pull()
        return pull_back(noises, pull)

    def lipschitz(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
        """The largest eigenvalue of Σ ρ e^(ρR) ∇²h and the prior's part; see the head of this file.

        A computed p is the softmax of logits that are off by e and a few roundings, which e^(2e) allows for.
        """
        of_prior = self._prior.third_derivative(posterior, radius)
        if not bool(torch.isfinite(of_prior).all()):
            return math.inf
        noises, total, few = self._noise(data), 0.0, gamma(self.dimensions + self.classes + 64)
        bend = noises.new_zeros(self.draws, self.parameter_count, self.parameter_count)
        for t, seen in self._look(posterior, data):
            weights = seen.reach * torch.exp(seen.reach * radius + 2 * seen.error + few)
            _add_curvature(bend[t], seen, weights)
            total += float((weights * seen.length.square()).sum()) / self.draws
        slack = 2 * gamma(self._depth(len(data))) * total
        return regression.third_derivative(pull_back_curvature(noises, bend), slack, of_prior)

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _noise(self, data: Tensor) -> Tensor:
        return frozen_noise(self.draws, self.parameter_count, self.seed, data.device)

    def _look(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[tuple[int, Seen]]:
        """Every draw by its number, with the rows in chunks, so that memory stays bounded."""
        for t, noise in enumerate(self._noise(data).view(self.draws, self.classes, self.dimensions)):
            theta = posterior.mean + posterior.std * noise
            size = posterior.mean.abs() + posterior.std * noise.abs()
            for rows in torch.split(data, _CHUNK_ROWS):
                features, labels = rows[:, :-1], rows[:, -1:].long()
                log_p = (features @ theta.T).log_softmax(1)
                squares = (features.square() @ (1 + noise.square()).T).topk(2, 1).values
                yield (
                    t,
                    Seen(
                        features,
                        labels,
                        log_p,
                        log_p.exp(),
                        squares[:, 0].sqrt(),
                        squares.sum(1).sqrt(),
                        gamma(self.dimensions + 64) * (features.abs() @ size.T).amax(1),
                    ),
                )

    def _depth(self, rows: int) -> int:
        """How many roundings a sum over rows and draws can go through, with those of its terms."""
        return min(rows, _CHUNK_ROWS) + math.ceil(rows / _CHUNK_ROWS) + self.draws + 64

    def _rounding(self, posterior: MeanFieldGaussian, rows: int, sizes: Tensor, error: float) -> Rounding:
        """If every logit is off by at most e, then p_k by 2e p_k(1-p_k), to first order, and by roundings γ p_k.

        Σ p_k(1-p_k) = 1 - |p|². So p - e_y is off by at most 2e(1-|p|²) + γ, and diag p - ppᵀ, where p counts three
        times, by 6e(1-|p|²) + 3γ; a sum adds γ of its absolute values, at most √2|a| and 2|a|² for each row. The
        factor 2 is for what is not first order; `error` is the largest e.
        """
        if not error <= _LARGEST_NOISE:
            return Rounding(math.inf, math.inf)
        each, of_prior = gamma(self._depth(rows) + self.classes), self._prior.rounding(posterior)
        gradient_noise, gradient_size, hessian_noise, hessian_size = sizes.tolist()
        return Rounding(
            2 * (2 * gradient_noise + 3 * each * gradient_size) + of_prior.gradient,
            2 * (6 * hessian_noise + 5 * each * hessian_size) + of_prior.hessian,
        )


def _add_curvature(bend: Tensor, seen: Seen, weights: Tensor) -> None:
    """Add Σ_i weights_i (diag p - ppᵀ)⊗xxᵀ: one product for every pair of classes, never a (rows × classes²) array."""
    spread = (seen.p.unsqueeze(2) * seen.features.unsqueeze(1)).flatten(1)
    weighted = weights.unsqueeze(1) * spread
    bend -= weighted.T @ spread
    classes, dimensions = seen.p.shape[1], seen.features.shape[1]
    own_blocks = bend.view(classes, dimensions, classes, dimensions).diagonal(dim1=0, dim2=2)
    own_blocks += (weighted.T @ seen.features).view(classes, dimensions, dimensions).permute(1, 2, 0)
