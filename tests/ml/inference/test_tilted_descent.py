"""Descent of the tilted energy, against a convex network and torch's own optimiser."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.inference.tilted_descent import DescentLimits, descend_tilted
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, learnable_rows, minimised

LIMITS = DescentLimits(rounds=20, products=100, nats=1e-9)


def at_minimum(network: Network, n: int = 200) -> tuple[MeanFieldGaussian, NetworkEnergy]:
    data = learnable_rows(network, n)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.05).double())
    drift = minimised(NetworkEnergy(network, data, frozen_draws(start, 4, seed=0), 4), torch.arange(n))
    posterior = MeanFieldGaussian(start.mean + drift, start.std)
    return posterior, NetworkEnergy(network, data, frozen_draws(posterior, 4, seed=0), 4)


def tilted_energy(energy: NetworkEnergy, forgotten: int) -> TiltedEnergy:
    pull = energy.misfit_gradient(torch.zeros_like(energy.draws[0]), torch.arange(forgotten))
    retained = torch.arange(forgotten, len(energy.data))
    return TiltedEnergy(energy, retained, pull)


@pytest.mark.parametrize("network", [OneLayer(), replace(TINY, activation="tanh")], ids=["convex", "perceptron"])
def test_a_network_at_rest_descends_to_the_minimum_of_the_retained_rows(network: Network) -> None:
    posterior, energy = at_minimum(network)
    tilted, origin = tilted_energy(energy, 4), torch.zeros_like(posterior.mean)
    descent = descend_tilted(tilted, origin, posterior.std, LIMITS)
    truth = tilted.value(origin) - tilted.value(minimised(energy, tilted.rows))
    assert descent.fall == pytest.approx(truth, rel=1e-3)
    assert descent.fall == pytest.approx(tilted.value(origin) - tilted.value(descent.drift))
    assert descent.remaining < 1e-3 * descent.fall


def test_what_may_remain_is_at_least_what_the_linearised_network_has_left() -> None:
    posterior, energy = at_minimum(OneLayer())
    tilted, origin = tilted_energy(energy, 4), torch.zeros_like(posterior.mean)
    descent = descend_tilted(tilted, origin, posterior.std, DescentLimits(rounds=1, products=1, nats=1e6))
    product = tilted.curvature(origin)
    matrix = torch.stack([product(column) for column in torch.eye(len(origin), dtype=torch.float64)])
    exact = 0.5 * float(tilted.pull.dot(torch.linalg.solve(matrix, tilted.pull)))
    assert (descent.rounds, descent.products) == (1, 2)
    assert exact < descent.linearised < 100 * exact


def test_limits_end_the_descent() -> None:
    posterior, energy = at_minimum(TINY)
    tilted, origin = tilted_energy(energy, 20), torch.zeros_like(posterior.mean)

    def descend(limits: DescentLimits) -> tuple[int, float, float]:
        descent = descend_tilted(tilted, origin, posterior.std, limits)
        return descent.rounds, descent.fall, descent.remaining

    thorough = descend(DescentLimits(rounds=8, products=100))
    assert thorough[0] == 8
    share = descend(DescentLimits(rounds=20, products=100, share=0.1))
    assert share[0] < 8
    assert share[1] <= thorough[1] <= share[1] + share[2] + 0.1 * share[1]
    assert descend(DescentLimits(rounds=20, products=100, nats=1e6))[0] == 1


def test_a_step_that_overshoots_is_shortened() -> None:
    """Far from the minimum the linearised network is wrong, but every step lowers the network's own energy."""
    posterior, energy = at_minimum(TINY)
    tilted = tilted_energy(energy, 4)
    start: Tensor = 3 * torch.randn(len(posterior.mean), generator=torch.Generator().manual_seed(0)).double()
    values = [
        tilted.value(descend_tilted(tilted, start, posterior.std, DescentLimits(rounds, 100)).drift)
        for rounds in (0, 1, 2, 4)
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[-1]
