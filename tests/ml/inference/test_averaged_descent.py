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


def scene() -> NetworkEnergy:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    data = torch.cat([x, x.argmax(1, keepdim=True).double()], 1)
    return NetworkEnergy(NETWORK, data, frozen_draws(NETWORK.initial(seed=1, std=0.05), 4, seed=2))


def slope(energy: NetworkEnergy, drift: Tensor) -> float:
    rows = torch.arange(len(energy.data))
    return float(energy.gradient(drift, rows).norm())


def test_the_gradient_left_over_nearly_vanishes() -> None:
    energy = scene()
    rested = average_descent(energy, torch.Generator().manual_seed(3), CONFIG)
    assert slope(energy, rested) < 0.1 * slope(energy, torch.zeros_like(rested))


def test_the_mean_of_the_path_is_nearer_than_its_end() -> None:
    energy = scene()
    mean = average_descent(energy, torch.Generator().manual_seed(3), CONFIG)
    end = average_descent(energy, torch.Generator().manual_seed(3), AveragedDescent(2_000, 1, 20, 1e-2))
    assert slope(energy, mean) < 0.6 * slope(energy, end)


def test_the_seed_decides_and_every_step_is_told() -> None:
    energy, told = scene(), list[int]()
    config = AveragedDescent(5, 5, 20, 3e-3)
    first = average_descent(energy, torch.Generator().manual_seed(3), config, told.append)
    assert torch.equal(first, average_descent(energy, torch.Generator().manual_seed(3), config))
    assert told == [1, 2, 3, 4, 5]


def test_what_cannot_be_settled_is_said() -> None:
    with pytest.raises(InvalidInput, match="at most as many"):
        AveragedDescent(iterations=5, averaged=6)
    with pytest.raises(InvalidInput, match="learning_rate"):
        AveragedDescent(learning_rate=0.0)
    double = scene()
    single = NetworkEnergy(NETWORK, double.data.float(), double.draws)
    with pytest.raises(NumericalFailure, match="lower the learning rate"):
        average_descent(single, torch.Generator().manual_seed(3), AveragedDescent(5, 5, 20, 1e30))
