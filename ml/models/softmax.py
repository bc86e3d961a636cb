"""Bayesian softmax regression, the Bayesian last layer: p(y=k | x, θ) ∝ e^(θ_k·x), θ ~ N(0, prior_std² I).

The label 0..classes-1 is the last column. q(θ) = N(μ, diag σ²), (classes × dimensions), with frozen noise. With
a_k = (x, x∘ε_tk), so that the logit z_k = θ_tk·x is a_kᵀλ_k, p = softmax(z), and A the block-diagonal matrix of the a_k

    F(λ) = (1/M) Σ_t Σ_i [log Σ_k e^(z_k) - z_y] + KL(q_λ ‖ prior)
    ∇F  = (1/M) Σ A (p - e_y) + ∇KL            ∇²F = (1/M) Σ A (diag p - ppᵀ) Aᵀ + ∇²KL

log-sum-exp is convex and z linear in λ, and the KL has curvature of at least 1/prior_std² in every direction: F has one
minimum.

Third derivative, in scaled coordinates, with a_k for a_k∘(s_k, s_k). Along a unit v the logits move by b_k = a_kᵀv_k,
and d³/dt³ log Σ e^(z+tb) is the third cumulant of b under p, E(b-Eb)³. The range of b is at most max |a_k||v_k| +
|a_l||v_l| ≤ ρ = max √(|a_k|² + |a_l|²) ≤ √2 max|a_k|, over k ≠ l. Given its mean, E(b-Eb)³ is linear in the
distribution, so extreme for one on two points, where it is p(1-p)(1-2p)ρ³, at most ρ³/(6√3). That is the worst over all
p. As |b-Eb| ≤ ρ it is also at most ρ Var b, which is small where p is confident. Moving the point along a unit u
changes Var b at the rate E(c-Ec)(b-Eb)², c_k = a_kᵀu_k, again at most ρ Var b. So on a ball of radius R it grows by at
most the factor e^(ρR), and a row and draw contribute at most ρ e^(ρR) Var b: the quadratic form of their own Hessian,
times ρ e^(ρR). A range does not change if all b_k do alike. So a direction that adds the same vector to the means of
all classes counts neither for |v| nor for R.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ml.models import checks, regression
from ml.models.family import Expansion, Rounding, width_scale
from ml.models.frozen_noise import (
    BY_SIZE,
    check_draws,
    energy_name,
    frozen_noise,
    pull_back,
    pull_back_curvature,
)
from ml.models.newton import newton_step
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.families import default_draws

_CHUNK_ROWS = 1024
_BLOCK_DRAWS = 32
_LARGEST_NOISE = 1e-3  # above it, errors are no longer first order


@dataclass(frozen=True, eq=False)
class LossTerms:
    """Loss of some rows under one draw, and its derivatives."""

    features: Tensor  # x: (rows, dimensions)
    labels: Tensor  # y: (rows, 1)
    log_p: Tensor  # (rows, classes)
    p: Tensor  # (rows, classes)
    length: Tensor  # max_k |a_k| in scaled coordinates: (rows,)
    logit_range: Tensor  # ρ, how far apart a unit step in scaled coordinates can move two logits: (rows,)
    error: Tensor  # bound on the rounding of a logit: (rows,)

    def loss(self) -> float:
        return -float(self.log_p.gather(1, self.labels).sum())

    def residual(self) -> Tensor:
        """Return p - e_y."""
        return self.p.scatter_add(1, self.labels, torch.full_like(self.log_p, -1.0))

    def sizes(self, residual: Tensor) -> Tensor:
        """Σ|a|e(1-|p|²), Σ|a|, Σ|a||p-e_y|, Σ|a|²e(1-|p|²) and Σ|a|², the terms of the rounding bound."""
        noise = self.length * self.error * (1 - self.p.square().sum(1)).clamp(min=0)
        terms = (noise, self.length, self.length * residual.norm(dim=1), noise * self.length, self.length.square())
        return torch.stack([term.sum() for term in terms])


@dataclass(frozen=True)
class SoftmaxRegression:
    dimensions: int
    classes: int
    prior_std: float
    draws: int = BY_SIZE
    seed: int = 0
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.check_count("dimensions", self.dimensions)
        checks.check_count("classes", self.classes, minimum=2)
        checks.check_scale("prior_std", self.prior_std)
        if self.draws == BY_SIZE:
            object.__setattr__(self, "draws", default_draws(self.parameter_count))
        check_draws(self.draws, self.seed)

    @property
    def energy_name(self) -> str:
        return energy_name(self.draws, self.seed)

    @property
    def parameter_count(self) -> int:
        return self.classes * self.dimensions

    def check_data(self, data: Tensor) -> None:
        checks.check_rows(data, self.dimensions)
        checks.check_labels(data, self.classes)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        checks.check_weights(posterior, (self.classes, self.dimensions))

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        logits = data[:, :-1] @ theta.reshape(self.classes, self.dimensions).T
        return logits.log_softmax(1).gather(1, data[:, -1:].long()).squeeze(1)

    def log_prior(self, theta: Tensor) -> Tensor:
        return self._prior.log_density(theta)

    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian:
        """Return weights of 0 with the widths of the curvature at 0. F is convex, so the seed has no effect."""
        self.check_data(data)
        share = 1 / self.classes
        precision = share * (1 - share) * data[:, :-1].square().sum(0) + self.prior_std**-2
        std = precision.rsqrt().expand(self.classes, -1).clone()
        return MeanFieldGaussian(torch.zeros_like(std), std)

    def sweep(self, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        """Make a damped Newton step, which descends from anywhere since F is convex."""
        return newton_step(self, self.expand(posterior, data), data).posterior

    def expand(self, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        """Sum the Hessian of each draw over (classes·dimensions)², and only then lift it to λ."""
        noises = self._noise(data)
        energy, gradient, curvature = self._prior.expand(posterior)
        gradients = torch.zeros_like(noises)
        curvatures = noises.new_zeros(self.draws, self.parameter_count, self.parameter_count)
        sizes, error = noises.new_zeros(5), 0.0
        for draw, chunk in self._loss_terms(posterior, data):
            residual = chunk.residual()
            energy += chunk.loss() / self.draws
            gradients[draw] += (residual.T @ chunk.features).flatten()
            _add_curvature(curvatures[draw], chunk, torch.ones_like(chunk.length))
            sizes += chunk.sizes(residual)
            error = max(error, float(chunk.error.max()))
        row_gradient = pull_back(noises, gradients)
        centring = _centre(row_gradient.view(2, self.classes, self.dimensions)[0], width_scale(posterior))
        hessian = pull_back_curvature(noises, curvatures)
        hessian.diagonal().add_(curvature)
        rounding = self._rounding(posterior, len(data), sizes / self.draws, error, centring)
        gradient += row_gradient
        return Expansion(posterior, energy, gradient, hessian, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        """Take many draws at once: logits are then one product of matrices for each chunk of rows."""
        noises = self._noise(group)
        thetas = posterior.mean.flatten() + posterior.std.flatten() * noises
        gradients = torch.cat([self._gradients(block, group) for block in torch.split(thetas, _BLOCK_DRAWS)])
        return pull_back(noises, gradients)

    def with_noise(self, draws: int, seed: int) -> SoftmaxRegression:
        return replace(self, draws=draws, seed=seed)

    def invariant_directions(self, posterior: MeanFieldGaussian) -> Tensor:
        """Return one direction for each feature: its mean weight changes alike in all classes, and so do the logits."""
        inverse = width_scale(posterior).reciprocal()
        directions = inverse.new_zeros(2, *inverse.shape, self.dimensions)
        directions[0].diagonal(dim1=1, dim2=2).copy_(inverse / inverse.norm(dim=0))
        return directions.view(-1, self.dimensions)

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        """Return Σ ρ e^(ρR) ∇²h and the prior's part, as derived in the module's docstring.

        A computed p is the softmax of logits that are off by e and a few roundings, which e^(2e) covers.
        """
        noises, total, roundings = self._noise(data), 0.0, gamma(self.dimensions + self.classes + 64)
        curvatures = noises.new_zeros(self.draws, self.parameter_count, self.parameter_count)
        for draw, chunk in self._loss_terms(posterior, data):
            weights = chunk.logit_range * torch.exp(chunk.logit_range * radius + 2 * chunk.error + roundings)
            _add_curvature(curvatures[draw], chunk, weights)
            total += float((weights * chunk.length.square()).sum()) / self.draws
        slack = 2 * gamma(self._depth(len(data))) * total
        scale = width_scale(posterior).flatten().repeat(2)
        row_bound = pull_back_curvature(noises, curvatures) * scale * scale.unsqueeze(1)
        return regression.third_derivative_bound(row_bound, slack, self._prior.third_derivative(posterior, radius))

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _noise(self, data: Tensor) -> Tensor:
        return frozen_noise(self.draws, self.parameter_count, self.seed, data.device)

    def _gradients(self, thetas: Tensor, data: Tensor) -> Tensor:
        """Return Σ_i ∇_θ loss_i for each row of `thetas`."""
        weights = thetas.view(-1, self.dimensions)
        gradients = torch.zeros_like(weights)
        for rows in torch.split(data, _CHUNK_ROWS):
            features, labels = rows[:, :-1], rows[:, -1:].long()
            residual = (features @ weights.T).view(len(rows), -1, self.classes).softmax(2)
            correct = labels.unsqueeze(2).expand(-1, len(thetas), 1)
            residual.scatter_add_(2, correct, residual.new_full(correct.shape, -1.0))
            gradients += residual.flatten(1).T @ features
        return gradients.view_as(thetas)

    def _loss_terms(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[tuple[int, LossTerms]]:
        """Yield each draw's index with the loss terms of a chunk of rows; chunks bound memory."""
        squared_scale = width_scale(posterior).square()
        for draw, noise in enumerate(self._noise(data).view(self.draws, self.classes, self.dimensions)):
            theta = posterior.mean + posterior.std * noise
            size = posterior.mean.abs() + posterior.std * noise.abs()
            weights = (1 + noise.square()) * squared_scale
            for rows in torch.split(data, _CHUNK_ROWS):
                features, labels = rows[:, :-1], rows[:, -1:].long()
                log_p = (features @ theta.T).log_softmax(1)
                squares = (features.square() @ weights.T).topk(2, 1).values
                length, logit_range = squares[:, 0].sqrt(), squares.sum(1).sqrt()
                error = gamma(self.dimensions + 16) * (features.abs() @ size.T).amax(1)
                yield draw, LossTerms(features, labels, log_p, log_p.exp(), length, logit_range, error)

    def _depth(self, rows: int) -> int:
        """Return how many roundings a sum over rows and draws goes through, those of its terms included."""
        return min(rows, _CHUNK_ROWS) + math.ceil(rows / _CHUNK_ROWS) + self.draws + 64

    def _rounding(
        self, posterior: MeanFieldGaussian, rows: int, sizes: Tensor, error: float, centring: float
    ) -> Rounding:
        """Return the a-priori error of an expansion; `error` is the largest e, `centring` that of `_centre`.

        If every logit is off by at most e, then p_k is off by 2e p_k(1-p_k), to first order, and by roundings γ_K p_k.
        As Σ p_k(1-p_k) = 1 - |p|², p - e_y is off by at most 2e(1-|p|²) + γ_K, and diag p - ppᵀ, where p counts three
        times, by 6e(1-|p|²) + 3γ_K. A sum adds γ of its absolute values, at most |a||p-e_y| and 2|a|² for each row. As
        e is at most _LARGEST_NOISE, higher orders are a hundredth of the first.
        """
        if not error <= _LARGEST_NOISE:
            return Rounding(math.inf, math.inf)
        unit, prior_rounding = gamma(self._depth(rows) + self.classes), self._prior.rounding(posterior)
        gradient_noise, lengths, gradient_size, hessian_noise, hessian_size = sizes.tolist()
        gradient = 2 * gradient_noise + gamma(self.classes + 16) * lengths + unit * gradient_size
        hessian = 6 * hessian_noise + 5 * unit * hessian_size
        return Rounding(1.01 * gradient, 1.01 * hessian + prior_rounding.hessian, centring + prior_rounding.gradient)


def _centre(gradient: Tensor, scale: Tensor) -> float:
    """Make the rows' gradient by the means, (classes × dimensions), sum to 0 over the classes. Return the rounding.

    The sum is 0 but for rounding, as that of p - e_y is. What is subtracted lies along the invariant directions, so
    that the rounding orthogonal to them does not grow. With G_k the gradient of a class and w_k = s_k⁻²/Σs⁻² the errors
    are at most γ w_k Σ|G| and γ|G_k|, where |s∘w| = 1/√(Σs⁻²) ≤ min s.
    """
    inverse_square = scale.square().reciprocal()
    sizes = (scale.amin(0) * gradient.abs().sum(0)).norm() + (scale * gradient).norm()
    gradient -= inverse_square / inverse_square.sum(0) * gradient.sum(0)
    return 2 * gamma(len(gradient) + 8) * float(sizes)


def _add_curvature(curvature: Tensor, chunk: LossTerms, weights: Tensor) -> None:
    """Add Σ_i weights_i (diag p - ppᵀ)⊗xxᵀ by products over all classes, without a (rows × classes²) tensor."""
    products = (chunk.p.unsqueeze(2) * chunk.features.unsqueeze(1)).flatten(1)
    weighted = weights.unsqueeze(1) * products
    curvature -= weighted.T @ products
    classes, dimensions = chunk.p.shape[1], chunk.features.shape[1]
    diagonal_blocks = curvature.view(classes, dimensions, classes, dimensions).diagonal(dim1=0, dim2=2)
    diagonal_blocks += (weighted.T @ chunk.features).view(classes, dimensions, dimensions).permute(1, 2, 0)
