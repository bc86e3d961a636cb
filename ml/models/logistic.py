"""Bayesian logistic regression: p(y=1 | x, θ) = 1/(1+e^(-xᵀθ)), θ ~ N(0, prior_std² I). The label 0 or 1 comes last.

q(θ) = N(μ, diag σ²). Under q, xᵀθ is N(xᵀμ, v²) with v = |x∘σ|. So the expected log-loss of a row is an integral over
one z ~ N(0, 1), which `logistic_expectations` computes to rounding accuracy, and F is the negative ELBO itself. With
f(t) = log(1+e^t) and t = ±xᵀμ + vz (+ for the label 0), and with e = x²∘σ/v, the gradient of v by σ,

    F(μ, σ) = Σ E f(t) + KL(q ‖ prior)       ∂_μ = Σ ±E f' x       ∂_σ = Σ E f'z e = Σ E f'' x²∘σ
    ∂²_μμ = Σ E f'' xxᵀ      ∂²_μσ = Σ ±E f''z xeᵀ      ∂²_σσ = Σ E f''(z²-1) eeᵀ + E f'' diag(x²)

each with its part of the KL. By Stein's identity E f'z = v E f'', and v ∂²v/∂σ² = diag(x²) - eeᵀ. F is jointly convex:
E f(a + vz) is convex in (a, v), since f is and its argument is linear; it does not fall with v, as ∂_v = E f'z ≥ 0; and
v is a norm of x∘σ. The KL has curvature of at least 1/prior_std² in every direction. So F has one minimum, which any
training reaches and which a certificate refers to.

Third derivative, in scaled coordinates, with x for x∘scale. Along a unit direction (p, q), let α = ±xᵀp, β = eᵀq and
b = α + βz be the change of t, and c = |x∘q|² - β² ≥ 0. By Stein's identity once more, a row contributes

    E f'''(t) (b³ + 3cb)        with  |b| ≤ |x|√(1+z²)  and  β² + c = |x∘q|²

(for θ = μ + σ∘ε the change of t is x·(p + q∘ε), which given z is Gaussian of mean b and variance c). On a ball of
radius R, t moves by at most |x|R√(1+z²), and `logistic_bounds` has A and B with which this is at most |x|(Aα² +
B|x∘q|²).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ml.models import checks, regression
from ml.models.family import Expansion, Rounding, width_scale
from ml.models.logistic_bounds import third_bounds
from ml.models.logistic_expectations import (
    MOST_NODES,
    QUADRATURE_ERROR,
    Expectations,
    expect,
    expect_slopes,
)
from ml.models.newton import newton_step
from ml.models.regression import WeightPrior
from ml.numerics.rounding import gamma
from ml.posteriors.mean_field import MeanFieldGaussian

_CHUNK_ROWS = 2048
_LARGEST_NOISE = 1e-3  # above it, errors are no longer first order
_SMALLEST_WIDTH = 1e-150  # its square is a normal number


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows under a posterior. All but the features and their squares are vectors."""

    features: Tensor
    squares: Tensor  # x²
    sign: Tensor  # 1 for the label 0, -1 for 1
    centre: Tensor  # ±xᵀμ: positive where the row is misclassified
    width: Tensor  # v
    length: Tensor  # |x| in scaled coordinates
    error: Tensor  # ρ: bound on the rounding of the centre and of the width together

    def gradient(self, residual: Tensor, curvature: Tensor) -> Tensor:
        """Return Σ ±E f' x, then Σ E f'' x²."""
        return torch.cat([(self.sign * residual) @ self.features, curvature @ self.squares])

    def curvature(self, expected: Expectations) -> Tensor:
        """Return the rows' part of the Hessian without the factors σ, and without Σ E f'' diag(0, x²)."""
        width = self.width.clamp(min=_SMALLEST_WIDTH)
        cross, stretch = self.sign * expected.cross / width, expected.stretch / width.square()
        weighted = torch.cat([_scale(expected.curvature, self.features), _scale(cross, self.squares)], 1)
        upper = self.features.T @ weighted
        lower = self.squares.T @ _scale(stretch, self.squares)
        return torch.cat([upper, torch.cat([upper[:, len(lower) :].T, lower], 1)])

    def sizes(self, expected: Expectations) -> Tensor:
        """Return the four sums of the rounding bound: noise and absolute values, of the gradient and of the Hessian."""
        squared_length, bounded_width = 3 * self.length.square(), self.width.clamp(max=4)
        hessian_noise = (expected.wide_size * self.error + QUADRATURE_ERROR) * (4 / self.width.clamp(min=4))
        return torch.stack(
            [
                self.length.dot((1 + bounded_width) * (expected.size * self.error + QUADRATURE_ERROR)),
                self.length.dot(expected.residual + self.width * expected.size),
                squared_length.dot(hessian_noise),
                squared_length.dot(expected.size),
            ]
        )

    def third_bounds(self, radius: float) -> tuple[Tensor, Tensor]:
        """Return |x|A and |x|B of each row."""
        mean_bound, width_bound = third_bounds(self.centre, self.width, self.length * radius + self.error)
        factor = self.length * (1 + gamma(self.features.shape[1] + MOST_NODES + 64))
        return factor * mean_bound, factor * width_bound


@dataclass(frozen=True)
class LogisticRegression:
    dimensions: int
    prior_std: float
    convex: ClassVar[bool] = True
    energy_name: ClassVar[str] = (
        "the negative evidence lower bound (ELBO), its expectations computed by quadrature to rounding accuracy"
    )

    def __post_init__(self) -> None:
        checks.check_count("dimensions", self.dimensions)
        checks.check_scale("prior_std", self.prior_std)

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
        energy, prior_gradient, prior_curvature = self._prior.expand(posterior)
        gradient, hessian = _zeros(posterior, 1), _zeros(posterior, 2)
        sizes, error = data.new_zeros(4), 0.0
        for rows in self._split(posterior, data):
            expected = expect(rows.centre, rows.width)
            energy += float(expected.loss.sum())
            gradient += rows.gradient(expected.residual, expected.curvature)
            hessian += rows.curvature(expected)
            sizes += rows.sizes(expected)
            error = max(error, float(rows.error.max()))
        factor = _width_factor(posterior)
        hessian *= factor.unsqueeze(1) * factor
        hessian.diagonal().add_(prior_curvature)
        hessian.diagonal()[self.dimensions :] += gradient[self.dimensions :]  # Σ E f'' x²
        rounding = self._rounding(posterior, len(data), sizes, error)
        return Expansion(posterior, energy, factor * gradient + prior_gradient, (hessian + hessian.T) / 2, rounding)

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        gradient = _zeros(posterior, 1)
        for rows in self._split(posterior, group):
            gradient += rows.gradient(*expect_slopes(rows.centre, rows.width))
        return _width_factor(posterior) * gradient

    def invariant_directions(self, posterior: MeanFieldGaussian) -> None:
        return None

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        """Return the quadratic form in the module's docstring and the prior's part."""
        scale, total = width_scale(posterior), 0.0
        form = _zeros(posterior, 2)
        mean_block, width_diagonal = form[: self.dimensions, : self.dimensions], form.diagonal()[self.dimensions :]
        for rows in self._split(posterior, data):
            mean_bound, width_bound = rows.third_bounds(radius)
            mean_block += rows.features.T @ _scale(mean_bound, rows.features)
            width_diagonal += width_bound @ rows.squares
            total += float(torch.maximum(mean_bound, width_bound).dot(rows.length.square()))
        mean_block *= scale.unsqueeze(1) * scale
        width_diagonal *= scale.square()
        slack = gamma(self._depth(len(data))) * total
        prior_bound = self._prior.third_derivative(posterior, radius)
        return regression.third_derivative_bound((form + form.T) / 2, slack, prior_bound)

    @property
    def _prior(self) -> WeightPrior:
        return WeightPrior(self.prior_std)

    def _split(self, posterior: MeanFieldGaussian, data: Tensor) -> Iterator[Rows]:
        """Yield the rows in chunks, which bounds memory."""
        squared_scale, unit = width_scale(posterior).square(), gamma(self.dimensions + 16)
        for chunk in torch.split(data, _CHUNK_ROWS):
            features, sign = chunk[:, :-1].contiguous(), 1 - 2 * chunk[:, -1]
            squares = features.square()
            width = (squares @ posterior.std.square()).sqrt()
            yield Rows(
                features,
                squares,
                sign,
                sign * (features @ posterior.mean),
                width,
                (squares @ squared_scale).sqrt(),
                unit * (features.abs() @ posterior.mean.abs() + width),
            )

    def _depth(self, rows: int) -> int:
        """Return how many roundings a sum over nodes and rows goes through, those of its terms included."""
        return min(rows, _CHUNK_ROWS) + math.ceil(rows / _CHUNK_ROWS) + 2 * self.dimensions + MOST_NODES + 128

    def _rounding(self, posterior: MeanFieldGaussian, rows: int, sizes: Tensor, error: float) -> Rounding:
        """Return the a-priori error of an expansion; `error` is the largest ρ of a row.

        If ±xᵀμ and v are off by at most ρ, then E f' is off by at most ρ E f''(1+z²), to first order, and E f'', E f''z
        and E f''(z²-1) by at most ρ E f''(1+z²)², since |f'''| ≤ f'' and |z|, |z²-1| ≤ 1+z². For v > 4 these three are
        off by 4/v of that at most: φ(z)/v with z = (s-b)/v changes by at most (1+z²)(2ρ/v) times itself. The roundings
        of the sums are γE f' and γE f''(1+z²). As |x²∘σ| ≤ v|x|, the gradient of a row changes by |x| times the error
        of E f' and v|x| times that of E f'', with one factor 1+z² less. Its Hessian changes by 3|x|² times the errors:
        2|x|² for the products of x and e, since |e| ≤ |x|, and |x|² for the diagonal. The factor 2 covers higher
        orders, and the errors of the bound itself.
        """
        if not error <= _LARGEST_NOISE:
            return Rounding(math.inf, math.inf)
        unit, prior_rounding = gamma(self._depth(rows)), self._prior.rounding(posterior)
        gradient_noise, gradient_size, hessian_noise, hessian_size = sizes.tolist()
        return Rounding(
            2 * (gradient_noise + unit * gradient_size) + prior_rounding.gradient,
            2 * (hessian_noise + unit * hessian_size) + prior_rounding.hessian,
        )


def _scale(weights: Tensor, matrix: Tensor) -> Tensor:
    return weights.unsqueeze(1) * matrix


def _zeros(posterior: MeanFieldGaussian, order: int) -> Tensor:
    return posterior.mean.new_zeros((2 * len(posterior.mean),) * order)


def _width_factor(posterior: MeanFieldGaussian) -> Tensor:
    """Return 1 for each mean and σ for each width, by which sums over x² become sums over x²∘σ."""
    return torch.cat([torch.ones_like(posterior.std), posterior.std])
