"""Likelihoods with known posteriors, for tests of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from ml.errors import InvalidInput
from ml.inference.laplace import fit_laplace
from ml.models.potential import Potential


@dataclass(frozen=True)
class Mixture:
    """Unit-variance components of equal weight, θ their centres: the paper's mixture without a variational family."""

    components: int = 4
    dimensions: int = 2
    prior_std: float = 1.0

    @property
    def parameter_count(self) -> int:
        return self.components * self.dimensions

    def check_data(self, data: Tensor) -> None:
        if data.ndim != 2 or data.shape[1] != self.dimensions:
            raise InvalidInput("the columns do not fit")

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        centres = theta.reshape(self.components, self.dimensions)
        squares = (data.unsqueeze(1) - centres).square().sum(2)
        constant = math.log(self.components) + self.dimensions / 2 * math.log(2 * math.pi)
        return torch.logsumexp(-squares / 2, 1) - constant

    def log_prior(self, theta: Tensor) -> Tensor:
        constant = math.log(self.prior_std) + math.log(2 * math.pi) / 2
        return -theta.square().sum() / (2 * self.prior_std**2) - self.parameter_count * constant


@dataclass(frozen=True)
class LinearRegression:
    """Last column = the others · θ + unit noise, θ ~ N(0, I): every posterior is Gaussian in closed form."""

    parameter_count: int

    def check_data(self, data: Tensor) -> None:
        if data.ndim != 2 or data.shape[1] != self.parameter_count + 1:
            raise InvalidInput("the columns do not fit")

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        return -(data[:, -1] - data[:, :-1] @ theta).square() / 2 - math.log(2 * math.pi) / 2

    def log_prior(self, theta: Tensor) -> Tensor:
        return -theta.square().sum() / 2 - self.parameter_count * math.log(2 * math.pi) / 2

    def posterior(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and covariance."""
        x, y = data[:, :-1], data[:, -1]
        covariance = torch.linalg.inv(torch.eye(self.parameter_count, dtype=data.dtype) + x.T @ x)
        return covariance @ (x.T @ y), covariance


def regression_data(n: int, parameters: int, generator: torch.Generator) -> Tensor:
    """Return rows with columns of unequal scale, so that the Hessian is no multiple of the identity."""
    x = torch.randn(n, parameters, generator=generator, dtype=torch.float64)
    x = x * torch.linspace(0.3, 2.0, parameters, dtype=torch.float64) + 0.3 * x.roll(1, 1)
    y = x.sum(1) + torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.cat([x, y.unsqueeze(1)], 1)


def with_moments(draws: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Map the draws affinely so that their mean and covariance are exactly these."""
    centred = draws - draws.mean(0)
    own = torch.linalg.cholesky(centred.T @ centred / len(draws))
    white = torch.linalg.solve_triangular(own, centred.T, upper=False)
    mapped: Tensor = mean + (torch.linalg.cholesky(covariance) @ white).T
    return mapped


def moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    centred = samples - samples.mean(0)
    return samples.mean(0), centred.T @ centred / len(samples)


def moment_kl(samples: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """Return KL(N(moments of the samples) ‖ N(mean, covariance)), with full covariances."""
    own_mean, own_covariance = moments(samples)
    gap = mean - own_mean
    ratio = torch.linalg.solve(covariance, own_covariance)
    return 0.5 * float(
        ratio.trace() - len(gap) - torch.linalg.slogdet(ratio)[1] + gap.dot(torch.linalg.solve(covariance, gap))
    )


def posterior_draws(potential: Potential, start: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return draws of the Laplace approximation, and the weights that turn them into draws of the posterior."""
    fitted = fit_laplace(potential, start)
    draws = fitted.mode + noise @ torch.linalg.cholesky(torch.linalg.inv(fitted.hessian)).T
    log_density = -vmap(potential.value, chunk_size=50)(draws)
    return draws, torch.softmax(log_density + noise.square().sum(1) / 2, 0)


def slope(sizes: list[int], errors: list[float]) -> float:
    """Return the slope of log error over log size."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(errors).double().log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
