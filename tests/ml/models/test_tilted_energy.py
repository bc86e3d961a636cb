"""The tilted energy against sums over rows and dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ml.models import tilted_energy
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, dense_gauss_newton, learnable_rows, random_theta

FORGOTTEN, RETAINED = torch.arange(5), torch.arange(5, 60)


@pytest.fixture(params=[1, 2, 4], ids=["one read", "two reads", "four reads"])
def energy(request: pytest.FixtureRequest) -> NetworkEnergy:
    posterior = MeanFieldGaussian(random_theta(TINY), torch.full((TINY.parameter_count,), 0.1, dtype=torch.float64))
    return NetworkEnergy(TINY, learnable_rows(TINY, 60), frozen_draws(posterior, 4, seed=0), request.param)


@pytest.fixture
def tilted(energy: NetworkEnergy) -> TiltedEnergy:
    return TiltedEnergy(energy, RETAINED, energy.misfit_gradient(zero(), FORGOTTEN))


def zero() -> Tensor:
    return torch.zeros(TINY.parameter_count, dtype=torch.float64)


def test_its_slope_at_the_posterior_is_minus_the_pull_of_the_forgotten_rows(tilted: TiltedEnergy) -> None:
    assert torch.allclose(tilted.gradient(zero()), -tilted.pull, atol=1e-11)


def test_values_and_gradients_are_those_of_the_retained_energy_less_its_tilt(
    tilted: TiltedEnergy, energy: NetworkEnergy
) -> None:
    drift = 0.1 * random_theta(TINY, 3)
    slope = energy.gradient(zero(), RETAINED) + tilted.pull

    def expected(at: Tensor) -> float:
        return energy.misfit(at, RETAINED) + energy.prior_energy(at) - float(slope.dot(at))

    assert tilted.value(drift) - tilted.value(zero()) == pytest.approx(expected(drift) - expected(zero()), abs=1e-10)
    assert torch.allclose(tilted.gradient(drift), energy.gradient(drift, RETAINED) - slope, atol=1e-10)


def test_the_curvature_is_the_gauss_newton_matrix_at_the_drift(tilted: TiltedEnergy, energy: NetworkEnergy) -> None:
    drift = 0.1 * random_theta(TINY, 3)
    product = tilted.curvature(drift)
    matrix = torch.stack([product(column) for column in torch.eye(TINY.parameter_count, dtype=torch.float64)])
    expected = torch.eye(TINY.parameter_count, dtype=torch.float64) / TINY.prior_std**2
    for draw in range(4):
        rows = RETAINED[RETAINED % energy.stride == draw % energy.stride]
        expected += dense_gauss_newton(TINY, energy.draws[draw] + drift, energy.data[rows]) / energy.reads
    assert torch.allclose(matrix, expected, rtol=1e-9, atol=1e-9)


def test_blocks_bound_memory_and_change_nothing(tilted: TiltedEnergy, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = 0.1 * random_theta(TINY, 3)
    whole = tilted.gradient(drift)
    monkeypatch.setattr(tilted_energy, "_ROWS_AT_ONCE", 8)
    in_blocks = TiltedEnergy(tilted.energy, tilted.rows, tilted.pull)
    assert torch.allclose(in_blocks.gradient(drift), whole, rtol=1e-11, atol=1e-11)
    assert len(in_blocks._blocks) > len(tilted._blocks)


def test_rounding_is_that_of_the_precision_of_the_rows(tilted: TiltedEnergy) -> None:
    coarse = NetworkEnergy(TINY, tilted.energy.data.float(), tilted.energy.draws, tilted.energy.reads)
    single = TiltedEnergy(coarse, tilted.rows, tilted.pull)
    drift = 0.1 * random_theta(TINY, 3)
    error = abs(single.value(drift) - single.value(zero()) - (tilted.value(drift) - tilted.value(zero())))
    assert 1e-13 < tilted.rounding() < 1e-10
    assert error < single.rounding() < 1e-3
