from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.inference.autocorrelation import autocorrelation_times, estimate_mean


def normals(seed: int, chains: int, draws: int, series: int) -> Tensor:
    return torch.randn(chains, draws, series, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autoregression(coefficient: float, noise: Tensor) -> Tensor:
    series = noise.clone()
    for t in range(1, noise.shape[1]):
        series[:, t] = coefficient * series[:, t - 1] + math.sqrt(1 - coefficient**2) * noise[:, t]
    return series


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_the_time_of_an_autoregression(coefficient: float) -> None:
    """τ = (1 + a)/(1 - a)."""
    series = autoregression(coefficient, normals(0, 4, 5_000, 3))
    expected = (1 + coefficient) / (1 - coefficient)
    assert autocorrelation_times(series).tolist() == pytest.approx([expected] * 3, rel=0.2)


def test_antithetic_draws_count_as_independent() -> None:
    series = autoregression(-0.6, normals(1, 2, 1_000, 2))
    assert autocorrelation_times(series).tolist() == [1.0, 1.0]
    assert estimate_mean(series, torch.ones(2, 1_000).double()).effective.tolist() == pytest.approx([2_000.0] * 2)


def test_chains_that_disagree_count_as_correlated_draws() -> None:
    """Two chains of 500 draws, one standard deviation apart each side: hardly more than two draws."""
    series = normals(2, 2, 500, 1) + torch.tensor([-1.0, 1.0]).view(2, 1, 1)
    assert float(estimate_mean(series, torch.ones(2, 500).double()).effective) < 20


@pytest.mark.parametrize("draws", [1, 2, 7])
def test_few_draws_have_a_time_too(draws: int) -> None:
    assert bool((autocorrelation_times(normals(3, 3, draws, 2)) >= 1).all())


def test_a_constant_series_has_no_error() -> None:
    assert bool(autocorrelation_times(torch.zeros(2, 10, 1).double()).isnan().all())


def test_errors_are_those_of_repetitions() -> None:
    """400 series of coefficient 0.5, weighted at random: their means spread as their errors say."""
    noise = normals(4, 4, 300, 401)
    weights = noise[..., 400].mul(0.5).exp()
    weights = weights / weights.mean()
    mean = estimate_mean(autoregression(0.5, noise[..., :400]), weights)
    assert float(mean.value.std() / mean.error.square().mean().sqrt()) == pytest.approx(1.0, abs=0.1)
    assert float(mean.effective.max()) < 1_200 / math.exp(0.25) * 1.1


def test_deviations_of_skewed_means_are_symmetric() -> None:
    """Means of 400 squares of normals, χ²-like: as many deviations below -2 as above 2, which plain ones are not."""
    mean = estimate_mean(normals(5, 4, 100, 8_000).square(), torch.ones(4, 100).double())
    plain, corrected = (mean.value - 1) / mean.error, mean.deviations(1.0)
    assert int((plain < -2).sum()) > 2 * int((plain > 2).sum())
    below, above = int((corrected < -2).sum()), int((corrected > 2).sum())
    assert 0.7 < below / above < 1.4
    assert (below + above) / 8_000 == pytest.approx(0.0455, abs=0.01)


def test_far_deviations_stay_far() -> None:
    """Squares of draws that are too narrow: where the cubic is flat, a third of the plain deviation remains."""
    series = normals(6, 4, 25, 1).square()
    for factor in torch.linspace(0.01, 0.4, 40).tolist():
        mean = estimate_mean(factor * series, torch.ones(4, 25).double())
        assert float(mean.deviations(1.0)) <= float((mean.value - 1) / mean.error) / 3 < -2
