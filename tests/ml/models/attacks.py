"""Attacks on a family's bounds, and a second implementation of frozen-noise energies from the likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models.family import Expansion, Family, width_scale
from ml.models.likelihood import Likelihood
from ml.models.regression import WeightPrior
from ml.posteriors.mean_field import MeanFieldGaussian

Energy = Callable[[Tensor], Tensor]


class Regression(Family, Likelihood, Protocol):
    prior_std: float


def frozen_data_energy(family: Regression, noise: Tensor, data: Tensor) -> Energy:
    """Return the rows' part of the energy under this noise."""

    def energy(flat: Tensor) -> Tensor:
        mean, std = flat.chunk(2)
        losses = [-family.log_likelihood(mean + std * epsilon, data).sum() for epsilon in noise]
        return torch.stack(losses).mean()

    return energy


def with_prior(family: Regression, data_energy: Energy) -> Energy:
    def energy(flat: Tensor) -> Tensor:
        mean, std = flat.chunk(2)
        prior = Normal(torch.zeros_like(mean), family.prior_std * torch.ones_like(mean))
        return data_energy(flat) + kl_divergence(Normal(mean, std), prior).sum()

    return energy


def omit_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the prior from the bound on the third derivative, so that the rows' part is tested alone."""
    monkeypatch.setattr(WeightPrior, "third_derivative", lambda _prior, at, _radius: torch.zeros_like(at.std.flatten()))


def expansion_errors(at: Expansion, gradient: Sequence[mpmath.mpf], curvature: mpmath.matrix) -> tuple[float, float]:
    """Return the norms, in scaled coordinates, of the errors of a computed gradient and Hessian."""
    gradient_errors = [float(mpmath.mpf(a) - b) for a, b in zip(at.gradient.tolist(), gradient, strict=True)]
    hessian_errors = [
        [float(mpmath.mpf(value) - curvature[i, j]) for j, value in enumerate(row)]
        for i, row in enumerate(at.hessian.tolist())
    ]
    vector, matrix = (torch.tensor(errors, dtype=torch.float64) for errors in (gradient_errors, hessian_errors))
    scaled_matrix = at.scale.unsqueeze(1) * matrix * at.scale
    return float((at.scale * vector).norm()), float(torch.linalg.matrix_norm(scaled_matrix, 2))


def scaled(posterior: MeanFieldGaussian, energy: Energy) -> tuple[Energy, Tensor]:
    """Return the energy as a function of scaled coordinates, and the posterior in them."""
    scale = width_scale(posterior).flatten().repeat(2)
    return lambda flat: energy(scale * flat), posterior.flat() / scale


def lipschitz(family: Family, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
    """Return a bound of ‖∇³F‖ in scaled coordinates: the largest eigenvalue of the family's bound."""
    bound = family.third_derivative_bound(posterior, data, radius)
    return float(torch.linalg.eigvalsh(bound)[-1]) if bool(torch.isfinite(bound).all()) else math.inf


def narrowest(posterior: MeanFieldGaussian) -> float:
    """Return the smallest width in scaled coordinates: the radius at which a ball reaches width 0."""
    return float((posterior.std / width_scale(posterior)).min())


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def random_unit(like: Tensor, generator: torch.Generator) -> Tensor:
    return unit(torch.randn(len(like), generator=generator, dtype=torch.float64))


def third_derivative(energy: Energy, point: Tensor, direction: Tensor) -> Tensor:
    """Return d³/dt³ of the energy along the direction."""
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = energy(point + t * direction)
    for _ in range(3):
        (value,) = torch.autograd.grad(value, t, create_graph=True)
    return value


def random_attack(energy: Energy, centre: Tensor, radius: float, tries: int = 60) -> float:
    """Return the largest third derivative at random points of the ball, in random directions."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(tries):
        length = radius * float(torch.rand((), generator=generator))
        point = centre + length * random_unit(centre, generator)
        value = third_derivative(energy, point, random_unit(centre, generator))
        largest = max(largest, abs(float(value.detach())))
    return largest


def ascent_attack(energy: Energy, centre: Tensor, radius: float, starts: int = 4, steps: int = 30) -> float:
    """Return the largest third derivative largest by gradient ascent in point and direction."""
    generator = torch.Generator().manual_seed(1)
    largest = 0.0
    for _ in range(starts):
        direction, offset = random_unit(centre, generator), torch.zeros_like(centre)
        for _ in range(steps):
            direction.requires_grad_()
            offset.requires_grad_()
            value = third_derivative(energy, centre + offset, unit(direction))
            largest = max(largest, abs(float(value.detach())))
            up_direction, up_offset = torch.autograd.grad(value.abs(), (direction, offset))
            direction = unit(direction.detach() + 0.3 * unit(up_direction))
            offset = offset.detach() + 0.2 * radius * unit(up_offset)
            offset = offset * min(1.0, radius / float(offset.norm()))
    return largest


def largest_bound_within(family: Family, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> float:
    """Return the largest bound, with radius 0, at points on the boundary of the ball that have the same scale."""
    generator = torch.Generator().manual_seed(2)
    flat, scale = posterior.flat(), width_scale(posterior)
    step = radius * scale.flatten().repeat(2)
    boundary = [posterior.with_flat(flat + step * random_unit(flat, generator)) for _ in range(200)]
    return max(lipschitz(family, point, data, 0.0) for point in boundary if torch.equal(width_scale(point), scale))


def random_posterior(shape: tuple[int, ...], seed: int, std: float = 0.3) -> MeanFieldGaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return MeanFieldGaussian(mean, std * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)))


def certified_ratios(family: Family, data: Tensor, share: float, epsilon: float, seeds: range) -> list[float]:
    """Forget random rows, and return the certified bounds over the KL to retraining. Each must be at least 1."""
    start = family.initial(data, 0)
    posterior, ratios = train(family, data, start, tolerance=0.0).posterior, []
    for seed in seeds:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        cut = max(1, round(share * len(data)))
        outcome = forget(family, posterior, data, order[:cut], Policy(epsilon))
        retrained = train(family, data[order[cut:]], start, tolerance=0.0).posterior
        assert outcome.certificate.level == "proved"
        assert outcome.certificate.epsilon <= epsilon
        assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon
        assert retrained.kl(outcome.posterior) <= outcome.certificate.epsilon_reverse
        ratios.append(outcome.certificate.epsilon / outcome.posterior.kl(retrained))
    return ratios
