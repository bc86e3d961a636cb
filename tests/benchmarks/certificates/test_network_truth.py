"""The truth of network certificates, against closed forms and the energy that certificates use."""

from __future__ import annotations

import pytest
import torch

from benchmarks.certificates.network_truth import FrozenNoise, minimise, own_excess
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, learnable_rows, random_theta


@pytest.mark.parametrize("reads", [1, 2, 4])
def test_its_energy_differs_from_that_of_certificates_by_a_constant(reads: int) -> None:
    posterior = MeanFieldGaussian(random_theta(TINY), torch.full((TINY.parameter_count,), 0.1, dtype=torch.float64))
    data, draws, rows = learnable_rows(TINY, 30), frozen_draws(posterior, 4, seed=0), torch.arange(3, 30)
    energy, other = FrozenNoise(draws, reads).energy(TINY, data, rows), NetworkEnergy(TINY, data, draws, reads)
    drifts = torch.zeros_like(posterior.mean), 0.1 * random_theta(TINY, 3)
    first, second = (float(energy(at)) - other.misfit(at, rows) - other.prior_energy(at) for at in drifts)
    assert first == pytest.approx(second, abs=1e-9)


def test_a_quadratic_is_minimised() -> None:
    centre = torch.arange(4.0, dtype=torch.float64)
    point, value = minimise(lambda at: (at - centre).square().sum() + 2, torch.zeros(4, dtype=torch.float64))
    assert torch.allclose(point, centre)
    assert value == pytest.approx(2)


def test_the_minimum_of_a_convex_network_has_no_excess() -> None:
    network, forgotten = OneLayer(), torch.arange(3)
    data, mean = learnable_rows(network, 60), OneLayer().initial(seed=4).mean
    noise = FrozenNoise(frozen_draws(MeanFieldGaussian(mean, torch.full_like(mean, 0.05)), 4, seed=0), 4)
    whole, retained = (noise.energy(network, data, torch.arange(first, 60)) for first in (0, 3))
    at = torch.zeros_like(mean).requires_grad_()
    slope = torch.autograd.grad(whole(at), at)[0]
    lowest, _ = minimise(lambda drift: retained(drift) - slope.dot(drift), torch.zeros_like(mean))
    excesses = [own_excess(network, data, noise, forgotten, drift, torch.Generator()) for drift in (lowest, 0 * mean)]
    assert excesses[0] == pytest.approx(0, abs=1e-9)
    assert excesses[1] > 1e-3
