from __future__ import annotations

import torch

from ml.forgetting.tilted_minibatches import tilt
from ml.inference.averaged_descent import AveragedDescent, average_descent
from ml.models.mlp import MLP
from ml.models.network_energy import NetworkEnergy

NETWORK = MLP(dimensions=2, hidden=3, classes=2, prior_std=1.0)


def half_trained() -> NetworkEnergy:
    """Return an energy at a draw that training has not brought to rest: part of its slope is no row's influence."""
    features = torch.randn(90, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = torch.cat([features, (features[:, :1] > 0).double()], 1)
    energy = NetworkEnergy(NETWORK, data, NETWORK.initial(0).mean.unsqueeze(0))
    drift = average_descent(energy, torch.Generator().manual_seed(2), AveragedDescent(120, 10, 45, 1e-2))
    return NetworkEnergy(NETWORK, data, energy.draws + drift)


def test_its_slope_is_the_pull_of_the_forgotten_rows() -> None:
    energy, forgotten = half_trained(), torch.arange(10)
    drift = torch.zeros(NETWORK.parameter_count, dtype=torch.float64, requires_grad=True)
    tilted = tilt(energy, drift.detach(), forgotten)
    generator = torch.Generator().manual_seed(1)
    slopes = [torch.autograd.grad(tilted.estimate(drift, 80, generator), drift)[0] for _ in range(300)]
    pull = energy.misfit_gradient(drift.detach(), forgotten)
    spread = torch.stack(slopes).std(0) / 300**0.5
    assert bool(((torch.stack(slopes).mean(0) + pull).abs() < 5 * spread + 1e-9).all())


def test_with_nothing_removed_descent_on_it_does_not_go_on_with_training() -> None:
    energy, none = half_trained(), torch.tensor([], dtype=torch.int64)
    origin, every_row = torch.zeros(NETWORK.parameter_count, dtype=torch.float64), torch.arange(90)
    config, generator = AveragedDescent(200, 100, 45, 1e-2), torch.Generator().manual_seed(1)
    trained = average_descent(energy, generator, config)
    control = average_descent(tilt(energy, origin, none), generator, config)
    fall = energy.misfit(origin, every_row) - energy.misfit(trained, every_row)
    assert fall > 1
    assert abs(energy.misfit(origin, every_row) - energy.misfit(control, every_row)) < 0.25 * fall
