"""Sampled constants, against dense matrices and third derivatives by automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp

from ml.certify.network.kantorovich import SampledConstants, least_curvature, sample_constants
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, learnable_rows, random_theta

N, DRAWS = 120, 4
WIDTH = 0.05


def energy_of(network: Network) -> NetworkEnergy:
    mean = network.initial(seed=4).mean
    posterior = MeanFieldGaussian(mean, torch.full_like(mean, WIDTH))
    return NetworkEnergy(network, learnable_rows(network, N), frozen_draws(posterior, DRAWS, seed=0))


def constants(energy: NetworkEnergy, gap: Tensor) -> SampledConstants:
    std, generator = torch.full_like(gap, WIDTH), torch.Generator().manual_seed(0)
    return sample_constants(energy, std, torch.arange(N), N, torch.zeros_like(gap), gap, generator)


def third_derivative(energy: NetworkEnergy, direction: Tensor) -> Tensor:
    """∇³F[v, v] at Δ = 0."""

    def misfit(drift: Tensor) -> Tensor:
        readers = torch.arange(N) % DRAWS
        parts = [
            energy.network.log_likelihood(energy.draws[draw] + drift, energy.data[readers == draw]).sum()
            for draw in range(DRAWS)
        ]
        return -torch.stack(parts).sum()

    def curvature(at: Tensor) -> Tensor:
        return jvp(grad(misfit), (at,), (direction,))[1]

    return jvp(curvature, (torch.zeros_like(direction),), (direction,))[1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_the_third_derivative_towards_the_minimum_is_that_of_the_network() -> None:
    energy = energy_of(OneLayer())
    gap = 1e-4 * random_theta(energy.network, 3)
    unit = gap / gap.norm()
    along = float((WIDTH * third_derivative(energy, WIDTH * unit)).norm())
    sampled = constants(energy, gap)
    assert along * (1 - 1e-3) <= sampled.lipschitz < 100 * along  # the largest of three directions
    assert sampled.kantorovich == pytest.approx(sampled.lipschitz * float(gap.norm()) / WIDTH / sampled.lambda_min)


def test_the_least_curvature_is_exact_if_lanczos_spans_the_whole_space() -> None:
    energy = energy_of(OneLayer())  # 16 parameters, below the number of steps
    std = torch.full((16,), WIDTH, dtype=torch.float64)
    curvature = energy.curvature(torch.arange(N), 1.0)
    dense = torch.stack([std * curvature(std * unit) for unit in torch.eye(16, dtype=torch.float64)])
    least = least_curvature(energy, std, torch.arange(N), N, torch.Generator().manual_seed(0))
    assert least == pytest.approx(float(torch.linalg.eigvalsh(dense)[0]), rel=1e-6)


def test_the_least_curvature_is_never_below_that_of_the_prior() -> None:
    energy = energy_of(TINY)
    size = energy.network.parameter_count
    std = torch.full((size,), WIDTH, dtype=torch.float64)
    curvature = energy.curvature(torch.arange(N), 1.0)
    dense = torch.stack([std * curvature(std * unit) for unit in torch.eye(size, dtype=torch.float64)])
    least = least_curvature(energy, std, torch.arange(N), N, torch.Generator().manual_seed(0))
    assert (WIDTH / TINY.prior_std) ** 2 <= least <= float(torch.linalg.eigvalsh(dense)[0]) * (1 + 1e-9)


def test_the_theorem_may_apply_near_the_minimum_and_cannot_far_away() -> None:
    energy = energy_of(TINY)
    gap = random_theta(TINY, 3)
    assert 0 < constants(energy, 1e-6 * gap).kantorovich < 0.5
    assert constants(energy, gap).kantorovich > 0.5
    assert constants(energy, 0 * gap).kantorovich == 0
