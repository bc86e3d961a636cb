"""The paper's mixture, trained once, and its energies computed directly from the model, to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from ml.inference.variational import train
from ml.models.gmm import GaussianMixture
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian


@dataclass(frozen=True)
class Scene:
    family: GaussianMixture
    data: Tensor
    labels: Tensor
    start: MeanFieldGaussian
    posterior: MeanFieldGaussian

    def retained(self, forgotten: Tensor) -> Tensor:
        keep = torch.ones(len(self.data), dtype=torch.bool)
        keep[forgotten] = False
        return self.data[keep]

    def of_classes(self, *classes: int, each: int) -> Tensor:
        """Return the positions of the first `each` rows of each class."""
        return torch.cat([torch.nonzero(self.labels == label).flatten()[:each] for label in classes])


@pytest.fixture(scope="session")
def scene() -> Scene:
    family = GaussianMixture(components=4, dimensions=2, prior_std=1.0)
    data, labels = synthetic_mixture(2000, seed=1)
    start = family.initial(data, seed=0)
    return Scene(family, data, labels, start, train(family, data, start, tolerance=0.0).posterior)


def data_energy(family: GaussianMixture, flat: Tensor, data: Tensor) -> Tensor:
    """Return Σ_i min over responsibilities of -E_q log p(x_i, c_i): a log-sum-exp of expected log-densities."""
    mean, std = flat.chunk(2)
    mean, std = mean.reshape(family.components, -1), std.reshape(family.components, -1)
    expected = Normal(mean, 1.0).log_prob(data.unsqueeze(1)) - std.square() / 2  # E (x-μ)² = (x-m)² + s²
    return -torch.logsumexp(expected.sum(2) - math.log(family.components), 1).sum()


def energy(family: GaussianMixture, flat: Tensor, data: Tensor) -> Tensor:
    mean, std = flat.chunk(2)
    prior = Normal(torch.zeros_like(mean), family.prior_std * torch.ones_like(mean))
    return data_energy(family, flat, data) + kl_divergence(Normal(mean, std), prior).sum()


def random_posterior(
    components: int, dimensions: int, generator: torch.Generator, std: float = 0.3
) -> MeanFieldGaussian:
    shape = (components, dimensions)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return MeanFieldGaussian(mean, std * (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)))


def saddle(scene: Scene) -> MeanFieldGaussian:
    """Return a stationary point that is no minimum: two equal components, after many sweeps."""
    mean, std = scene.posterior.mean.clone(), scene.posterior.std.clone()
    mean[1], std[1] = mean[0], std[0]
    posterior = MeanFieldGaussian(mean, std)
    for _ in range(60):
        posterior = scene.family.sweep(posterior, scene.data)
    return posterior
