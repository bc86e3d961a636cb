from __future__ import annotations

import functools
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from ml.certify import importance
from ml.certify.importance import (
    Estimate,
    _block_sums,
    _interval,
    estimate_divergence,
    log_importance_weights,
    pareto_k,
    relative_ess,
    unevenness,
)
from ml.forgetting.samples import affine_map, shift
from ml.models.potential import Potential
from tests.ml.likelihoods import LinearRegression, regression_data


def test_chunks_of_rows_give_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(3), regression_data(200, 3, generator)
    samples = 1 + 0.1 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    moved = shift(likelihood, samples, data, torch.arange(20))
    at_once, _ = log_importance_weights(likelihood, samples, moved, data, data[20:])
    monkeypatch.setattr(importance, "Potential", functools.partial(Potential, rows_at_once=600))
    chunked, _ = log_importance_weights(likelihood, samples, moved, data, data[20:])
    assert torch.allclose(chunked, at_once, rtol=1e-12)


def test_weights_are_the_ratio_of_the_joint_densities() -> None:
    """log p(Tθ, R) + log|det| - log p(θ, S), row by row."""
    likelihood, data = LinearRegression(2), regression_data(9, 2, torch.Generator().manual_seed(1))
    samples = torch.tensor([[0.5, 1.0], [1.5, -0.5]], dtype=torch.float64)
    moved = shift(likelihood, samples, data, torch.arange(4))
    log_weights, rounding = log_importance_weights(likelihood, samples, moved, data, data[4:])
    for theta, moved_theta, log_weight in zip(samples, moved.samples, log_weights, strict=True):
        after = likelihood.log_likelihood(moved_theta, data[4:]).sum() + likelihood.log_prior(moved_theta)
        before = likelihood.log_likelihood(theta, data).sum() + likelihood.log_prior(theta)
        assert float(log_weight) == pytest.approx(float(after - before), rel=1e-12)
    assert 0 < rounding < 1e-12


def test_an_exact_map_gives_every_sample_the_ratio_of_the_evidences() -> None:
    """Then w = p(R)/p(S), with p(y) = N(y; 0, I + XXᵀ), for any sample: the determinant of the map included."""
    likelihood, data = LinearRegression(2), regression_data(9, 2, torch.Generator().manual_seed(1))
    samples = torch.tensor([[0.5, 1.0], [1.5, -0.5], [0.0, 0.3]], dtype=torch.float64)
    moved = affine_map(likelihood, samples, data, torch.arange(4))
    log_weights, _ = log_importance_weights(likelihood, samples, moved, data, data[4:])
    assert abs(moved.log_det) > 0.1
    expected = log_evidence(data[4:]) - log_evidence(data)
    assert log_weights.tolist() == pytest.approx([expected] * 3, rel=1e-9)


def log_evidence(data: Tensor) -> float:
    x, y = data[:, :-1], data[:, -1]
    covariance = torch.eye(len(data), dtype=data.dtype) + x @ x.T
    return float(MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


@pytest.mark.parametrize("offset", [0.0, 100.0], ids=["smaller after", "larger after"])
def test_rounding_is_limited_by_the_larger_density_and_the_number_of_terms(offset: float) -> None:
    """2γ(n + p) max|log p|, γ(k) = ku/(1 - ku): 9 rows and 2 parameters make 11 terms."""
    likelihood, data = LinearRegression(2), regression_data(9, 2, torch.Generator().manual_seed(1))
    samples = torch.tensor([[0.5, 1.0], [1.5, -0.5]], dtype=torch.float64)
    moved = shift(likelihood, samples, data, torch.arange(4))
    moved = replace(moved, samples=moved.samples + offset)
    _, rounding = log_importance_weights(likelihood, samples, moved, data, data[4:])
    before, after = Potential(likelihood, data).values(samples), Potential(likelihood, data[4:]).values(moved.samples)
    largest = max(float(before.abs().max()), float(after.abs().max()))
    assert (float(after.abs().max()) > float(before.abs().max())) == (offset > 0)
    assert rounding == pytest.approx(2 * 11 * 2.0**-53 * largest, rel=1e-9)


def test_unevenness_is_measured_in_standard_deviations() -> None:
    samples = torch.randn(2000, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    matrix = torch.tensor([[1.3, 0.2, 0.0], [0.1, 0.7, 0.0], [0.0, 0.3, 1.1]], dtype=torch.float64)
    moved = 2.0 + samples @ matrix
    assert unevenness(samples, moved) < 1e-10
    off = moved.clone()
    off[5, 1] += 0.5 * float(moved[:, 1].std())
    assert unevenness(samples, off) == pytest.approx(0.5, rel=0.02)
    assert unevenness(samples[:8], moved[:8]) < 1e-10
    assert math.isnan(unevenness(samples[:7], moved[:7]))


def test_the_map_is_checked_up_to_the_limit_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = torch.randn(20, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    monkeypatch.setattr(importance, "_MAX_PARAMETERS", 3)
    assert unevenness(samples, 2 * samples) < 1e-10
    monkeypatch.setattr(importance, "_MAX_PARAMETERS", 2)
    assert math.isnan(unevenness(samples, 2 * samples))


def test_the_divergence_is_that_of_the_normalised_weights() -> None:
    log_weights = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    normalised, uniform = torch.log_softmax(log_weights, 0), -math.log(400)
    estimate = estimate_divergence(50 + log_weights, torch.zeros(400, dtype=torch.int64), 0.0, seed=0)
    assert estimate.value == pytest.approx(float((uniform - normalised).mean()), rel=1e-12)
    assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("rounding", [0.0, 1e-3])
def test_equal_weights_have_no_divergence_but_that_of_rounding(rounding: float) -> None:
    estimate = estimate_divergence(torch.zeros(90, dtype=torch.float64), torch.arange(90) % 3, rounding, seed=0)
    assert estimate == Estimate(0.0, 0.0, pytest.approx(rounding**2 / 2))


def test_the_interval_is_two_and_a_half_standard_errors_down_and_four_up() -> None:
    """On the log scale."""
    log_weights = 0.3 * torch.randn(3000, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    estimate = estimate_divergence(log_weights, torch.arange(3).repeat_interleave(1000), 0.0, seed=0)
    down, up = math.log(estimate.value / estimate.low), math.log(estimate.high / estimate.value)
    assert up / down == pytest.approx(4 / 2.5, rel=1e-9)
    # The delta method: KL ≈ ½ var(log w), whose relative standard error over 3,000 independent draws is √(2/3000).
    assert up / 4 == pytest.approx(math.sqrt(2 / 3000), rel=0.15)


def test_small_divergences_keep_their_digits() -> None:
    """KL = ½ var(log w) to leading order: 5e-19 here, where log mean w - mean log w would cancel to nothing."""
    log_weights = 1e-9 * torch.randn(4000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    estimate = estimate_divergence(log_weights, torch.zeros(4000, dtype=torch.int64), 0.0, seed=0)
    half_variance = 0.5 * float(log_weights.var(correction=0))
    assert estimate.value == pytest.approx(half_variance, rel=1e-5)


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


def test_a_value_that_is_all_error_has_a_finite_interval() -> None:
    interval = _interval(1e-3, spread=1.0, rounding=0.0)
    assert interval == Estimate(1e-3, 0.0, pytest.approx(1e-3 * math.exp(700)))


def test_blocks_are_of_the_square_root_of_the_chain_and_leave_out_its_start() -> None:
    """Ten draws make three blocks of three; the first draw is left out."""
    terms = torch.arange(10.0).double().unsqueeze(1)
    assert _block_sums(terms).flatten().tolist() == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9]


def test_repeated_draws_count_once() -> None:
    """Every value sixteen times in a row, against the same values shuffled: about √16 times as uncertain."""
    generator = torch.Generator().manual_seed(4)
    values = 0.3 * torch.randn(250, generator=generator, dtype=torch.float64)
    chain = torch.arange(4).repeat_interleave(1000)
    in_runs = values.repeat_interleave(16)
    shuffled = in_runs[torch.randperm(4000, generator=generator)]
    widths = []
    for log_weights in (in_runs, shuffled):
        estimate = estimate_divergence(log_weights, chain, 0.0, seed=0)
        widths.append(math.log(estimate.high / estimate.low))
    assert 2.5 < widths[0] / widths[1] < 5


def test_chains_of_any_lengths_and_numbers_are_resampled() -> None:
    log_weights = torch.randn(57, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chain = torch.tensor([0] * 30 + [3] * 26 + [9])
    estimate = estimate_divergence(log_weights, chain, 0.0, seed=0)
    assert 0 < estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("constant", [0.0, -800.0])
def test_the_shape_of_a_pareto_tail_is_estimated(k: float, constant: float) -> None:
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    assert pareto_k(constant - k * uniform.log(), 0.0) == pytest.approx(k, abs=0.15)


@pytest.mark.parametrize(("rounding", "has_tail"), [(0.49, True), (0.5, False), (0.51, False)])
def test_weights_that_differ_by_rounding_only_have_no_tail(rounding: float, has_tail: bool) -> None:
    """A range of 1, which errors of ½ in two weights can make."""
    log_weights = 700 + torch.linspace(0, 1, 1001, dtype=torch.float64)
    assert (pareto_k(log_weights, rounding) != 0) == has_tail


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_leaves_the_tail_unknown(value: float) -> None:
    log_weights = torch.randn(200, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    log_weights[7] = value
    assert math.isnan(pareto_k(log_weights, 0.0))


def test_the_relative_ess_by_hand() -> None:
    """One weight of 3 and three of 1: 6²/(4·12)."""
    assert relative_ess(torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64).log()) == pytest.approx(0.75)
    assert relative_ess(torch.full((9,), -800.0, dtype=torch.float64)) == pytest.approx(1.0)


def test_arviz_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml.certify.importance; print(sorted({'arviz', 'xarray', 'torch'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"
