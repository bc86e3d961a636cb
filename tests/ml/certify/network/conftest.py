"""Trained networks, and the exact minimum of their linearisation from dense matrices of all retained rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from ml.models.network import Dense, Layer, Network, identity
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import learnable_rows, minimised

DRAWS, GROUPS = 4, 20


@dataclass(frozen=True)
class Smooth(Network):
    prior_std: float = 0.5

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Dense(3, 4, torch.tanh), Dense(4, 3, identity))


@dataclass(frozen=True, eq=False)
class Trained:
    """A posterior at the minimum of its own frozen energy, with fixed widths."""

    network: Network
    data: Tensor
    posterior: MeanFieldGaussian

    @functools.cached_property
    def energy(self) -> NetworkEnergy:
        return NetworkEnergy(self.network, self.data, frozen_draws(self.posterior, DRAWS, seed=0), DRAWS)

    @functools.cached_property
    def row_curvatures(self) -> Tensor:
        """Jᵀ(diag p - ppᵀ)J of each row, averaged over the draws: (n, p, p)."""

        def logits(theta: Tensor, row: Tensor) -> Tensor:
            return self.network.outputs(theta, row.unsqueeze(0)).squeeze(0)

        def curvatures(theta: Tensor) -> Tensor:
            jacobians = vmap(jacrev(logits), (None, 0))(theta, self.data)
            p = vmap(logits, (None, 0))(theta, self.data).softmax(1)
            return jacobians.mT @ (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) @ jacobians

        return torch.stack([curvatures(theta) for theta in self.energy.draws]).mean(0)

    def case(self, forgotten: Tensor) -> Case:
        retained = torch.ones(len(self.data), dtype=torch.bool)
        retained[forgotten] = False
        prior = torch.eye(self.network.parameter_count, dtype=torch.float64) / self.network.prior_std**2
        pull = self.energy.misfit_gradient(torch.zeros_like(self.posterior.mean), forgotten)
        rows = torch.nonzero(retained).flatten()
        return Case(self, forgotten, rows, pull, self.row_curvatures[retained].sum(0) + prior)

    def moved(self, drift: Tensor) -> MeanFieldGaussian:
        return MeanFieldGaussian(self.posterior.mean + drift, self.posterior.std)


@dataclass(frozen=True, eq=False)
class Case:
    """A group to forget, the retained rows, g, and A over all of them."""

    trained: Trained
    forgotten: Tensor
    retained: Tensor
    pull: Tensor
    curvature: Tensor

    @functools.cached_property
    def step(self) -> Tensor:
        return torch.linalg.solve(self.curvature, self.pull)

    def excess(self, drift: Tensor) -> float:
        residual = self.curvature @ drift - self.pull
        return 0.5 * float(residual.dot(torch.linalg.solve(self.curvature, residual)))

    def gradient(self, drift: Tensor) -> float:
        """‖r‖ in units of 1/σ."""
        return float((self.trained.posterior.std * (self.curvature @ drift - self.pull)).norm())

    @functools.cached_property
    def tilted(self) -> TiltedEnergy:
        return TiltedEnergy(self.trained.energy, self.retained, self.pull)

    @functools.cached_property
    def own_step(self) -> Tensor:
        """Where torch's own optimiser ends from the posterior before, which is at rest."""
        return minimised(self.trained.energy, self.retained)

    @functools.cached_property
    def lowest(self) -> float:
        return self.tilted.value(self.own_step)

    def own_excess(self, drift: Tensor) -> float:
        return self.tilted.value(drift) - self.lowest

    def own_gradient(self, drift: Tensor) -> float:
        """‖∇F̃‖ in units of 1/σ."""
        return float((self.trained.posterior.std * self.tilted.gradient(drift)).norm())


def train(network: Network, n: int) -> Trained:
    data = learnable_rows(network, n)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.05).double())
    drift = minimised(NetworkEnergy(network, data, frozen_draws(start, DRAWS, seed=0), DRAWS), torch.arange(n))
    return Trained(network, data, MeanFieldGaussian(start.mean + drift, start.std))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(n: int) -> list[Tensor]:
    """Groups of one to eight rows; some are too far from linear to get an interval."""
    return [torch.randperm(n, generator=seeded(seed))[: 1 + seed % 8] for seed in range(GROUPS)]


@pytest.fixture(scope="session")
def smooth() -> Trained:
    return train(Smooth(), 400)


@pytest.fixture(scope="session")
def cases(smooth: Trained) -> list[Case]:
    return [smooth.case(group) for group in groups(400)]
