from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.inference.averaged_descent import AveragedDescent, average_descent
from ml.models.mlp import MLP
from ml.models.network_energy import NetworkEnergy, frozen_draws

NETWORK = MLP(dimensions=3, hidden=4, classes=3, prior_std=0.5)
CONFIG = AveragedDescent(iterations=2_000, averaged=1_000, batch_size=20, learning_rate=1e-2)


def random_energy() -> NetworkEnergy:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    data = torch.cat([x, x.argmax(1, keepdim=True).double()], 1)
    return NetworkEnergy(NETWORK, data, frozen_draws(NETWORK.initial(seed=1, std=0.05), 4, seed=2))


def gradient_norm(energy: NetworkEnergy, drift: Tensor) -> float:
    rows = torch.arange(len(energy.data))
    return float(energy.gradient(drift, rows).norm())


def test_the_gradient_nearly_vanishes() -> None:
    energy = random_energy()
    drift = average_descent(energy, torch.Generator().manual_seed(3), CONFIG)
    assert gradient_norm(energy, drift) < 0.1 * gradient_norm(energy, torch.zeros_like(drift))


def test_the_mean_of_the_iterates_is_nearer_to_the_minimum_than_the_last() -> None:
    energy = random_energy()
    mean = average_descent(energy, torch.Generator().manual_seed(3), CONFIG)
    last = average_descent(energy, torch.Generator().manual_seed(3), AveragedDescent(2_000, 1, 20, 1e-2))
    assert gradient_norm(energy, mean) < 0.6 * gradient_norm(energy, last)


def test_the_seed_decides_and_every_step_is_reported() -> None:
    energy, steps = random_energy(), list[int]()
    config = AveragedDescent(5, 5, 20, 3e-3)
    first = average_descent(energy, torch.Generator().manual_seed(3), config, steps.append)
    assert torch.equal(first, average_descent(energy, torch.Generator().manual_seed(3), config))
    assert steps == [1, 2, 3, 4, 5]


def test_invalid_settings_and_divergence_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at most as many"):
        AveragedDescent(iterations=5, averaged=6)
    with pytest.raises(InvalidInput, match="learning_rate"):
        AveragedDescent(learning_rate=0.0)
    double = random_energy()
    single = NetworkEnergy(NETWORK, double.data.float(), double.draws)
    with pytest.raises(NumericalFailure, match="lower the learning rate"):
        average_descent(single, torch.Generator().manual_seed(3), AveragedDescent(5, 5, 20, 1e30))
