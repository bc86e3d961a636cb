from __future__ import annotations

import functools
import math
import subprocess
import sys

import pytest
import torch

from ml.certify import importance
from ml.certify.importance import estimate_divergence, log_importance_weights, pareto_k, relative_ess, unevenness
from ml.forgetting.samples import shift
from ml.models.potential import Potential
from tests.ml.likelihoods import LinearRegression, regression_data


def test_rows_in_chunks_weigh_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(3), regression_data(200, 3, generator)
    samples = 1 + 0.1 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    moved = shift(likelihood, samples, data, torch.arange(20))
    at_once, _ = log_importance_weights(likelihood, samples, moved, data, data[20:])
    monkeypatch.setattr(importance, "Potential", functools.partial(Potential, rows_at_once=600))
    chunked, _ = log_importance_weights(likelihood, samples, moved, data, data[20:])
    assert torch.allclose(chunked, at_once, rtol=1e-12)


def test_a_weight_is_what_its_name_says() -> None:
    """log p(Tθ, R) + log|det| - log p(θ, S), row by row."""
    likelihood, data = LinearRegression(2), regression_data(9, 2, torch.Generator().manual_seed(1))
    samples = torch.tensor([[0.5, 1.0], [1.5, -0.5]], dtype=torch.float64)
    moved = shift(likelihood, samples, data, torch.arange(4))
    log_weights, rounding = log_importance_weights(likelihood, samples, moved, data, data[4:])
    for theta, there, found in zip(samples, moved.samples, log_weights, strict=True):
        after = likelihood.log_likelihood(there, data[4:]).sum() + likelihood.log_prior(there)
        before = likelihood.log_likelihood(theta, data).sum() + likelihood.log_prior(theta)
        assert float(found) == pytest.approx(float(after - before), rel=1e-12)
    assert 0 < rounding < 1e-12


def test_the_map_is_measured_in_standard_deviations() -> None:
    samples = torch.randn(2000, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    bent = torch.tensor([[1.3, 0.2, 0.0], [0.1, 0.7, 0.0], [0.0, 0.3, 1.1]], dtype=torch.float64)
    moved = 2.0 + samples @ bent
    assert unevenness(samples, moved) < 1e-10
    off = moved.clone()
    off[5, 1] += 0.5 * float(moved[:, 1].std())
    assert unevenness(samples, off) == pytest.approx(0.5, rel=0.02)
    assert math.isnan(unevenness(samples[:7], moved[:7]))


def test_the_divergence_is_that_of_the_normalised_weights() -> None:
    log_weights = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    normalised, even = torch.log_softmax(log_weights, 0), -math.log(400)
    found = estimate_divergence(50 + log_weights, torch.zeros(400, dtype=torch.int64), 0.0, seed=0)
    assert found.value == pytest.approx(float((even - normalised).mean()), rel=1e-12)
    assert found.low < found.value < found.high


def test_small_divergences_keep_their_digits() -> None:
    """KL = ½ var(log w) to leading order: 5e-19 here, where log mean w - mean log w would cancel to nothing."""
    log_weights = 1e-9 * torch.randn(4000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = estimate_divergence(log_weights, torch.zeros(4000, dtype=torch.int64), 0.0, seed=0)
    half_variance = 0.5 * float(log_weights.var(correction=0))
    assert found.value == pytest.approx(half_variance, rel=1e-5)


def test_rounding_widens_the_interval_by_what_it_can_do() -> None:
    """Errors of e in log w move KL by at most e √(2KL) + e²/2; a sign for each draw comes close."""
    generator = torch.Generator().manual_seed(3)
    log_weights, error = 1e-3 * torch.randn(1000, generator=generator, dtype=torch.float64), 1e-3
    chain = torch.zeros(1000, dtype=torch.int64)
    exact = estimate_divergence(log_weights, chain, 0.0, seed=0)
    slack = error * math.sqrt(2 * exact.value) + error**2 / 2
    widened = estimate_divergence(log_weights, chain, error, seed=0)
    worst = estimate_divergence(log_weights + error * log_weights.sign(), chain, 0.0, seed=0)
    assert widened.high - exact.high == pytest.approx(slack, rel=1e-9)
    assert 0.5 * slack < worst.value - exact.value < slack


def test_draws_that_repeat_each_other_count_once() -> None:
    """Every value sixteen times in a row, against the same values shuffled: about √16 times as uncertain."""
    generator = torch.Generator().manual_seed(4)
    values = 0.3 * torch.randn(250, generator=generator, dtype=torch.float64)
    chain = torch.arange(4).repeat_interleave(1000)
    in_runs = values.repeat_interleave(16)
    shuffled = in_runs[torch.randperm(4000, generator=generator)]
    widths = []
    for log_weights in (in_runs, shuffled):
        found = estimate_divergence(log_weights, chain, 0.0, seed=0)
        widths.append(math.log(found.high / found.low))
    assert 2.5 < widths[0] / widths[1] < 5


def test_chains_of_any_lengths_and_numbers_are_resampled() -> None:
    log_weights = torch.randn(57, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chain = torch.tensor([0] * 30 + [3] * 26 + [9])
    found = estimate_divergence(log_weights, chain, 0.0, seed=0)
    assert 0 < found.low < found.value < found.high


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_tail_of_a_pareto_law_is_found(k: float) -> None:
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    assert pareto_k(-k * uniform.log(), 0.0) == pytest.approx(k, abs=0.15)


def test_the_relative_size_of_known_weights() -> None:
    """One weight of 3 and three of 1: 6²/(4·12)."""
    assert relative_ess(torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64).log()) == pytest.approx(0.75)
    assert relative_ess(torch.full((9,), -800.0, dtype=torch.float64)) == pytest.approx(1.0)


def test_arviz_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml.certify.importance; print(sorted({'arviz', 'xarray', 'torch'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['torch']"
