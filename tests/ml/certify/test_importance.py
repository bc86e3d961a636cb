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
    estimate_chi_square,
    estimate_divergence,
    pareto_k,
    relative_ess,
    unevenness,
    weigh_moved,
    weigh_unmoved,
)
from ml.errors import NumericalFailure
from ml.forgetting.samples import MovedSamples, affine_map, shift
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from tests.ml.likelihoods import LinearRegression, regression_data

LIKELIHOOD, ROWS = LinearRegression(2), regression_data(9, 2, torch.Generator().manual_seed(1))
SAMPLES = SampleSet(torch.tensor([[0.5, 1.0], [1.5, -0.5], [0.0, 0.3]], dtype=torch.float64), torch.zeros(3).long())


def centred(values: Tensor) -> list[float]:
    return [float(value) for value in values - values.mean()]


def test_chunks_of_rows_give_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(3), regression_data(200, 3, generator)
    draws = 1 + 0.1 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    samples, moved = SampleSet(draws, torch.zeros(50).long()), shift(likelihood, draws, data, torch.arange(20))
    at_once = weigh_moved(likelihood, samples, moved, data, data[20:])
    monkeypatch.setattr(importance, "Potential", functools.partial(Potential, rows_at_once=600))
    chunked = weigh_moved(likelihood, samples, moved, data, data[20:])
    assert torch.allclose(chunked.log_weights, at_once.log_weights, rtol=1e-12)


def test_weights_are_the_ratio_of_the_joint_densities() -> None:
    """log p(Tθ, R) + log|det| - log p(θ, S), row by row, up to a constant."""
    moved = shift(LIKELIHOOD, SAMPLES.samples, ROWS, torch.arange(4))
    weighed = weigh_moved(LIKELIHOOD, SAMPLES, moved, ROWS, ROWS[4:])
    expected = []
    for theta, moved_theta in zip(SAMPLES.samples, moved.samples, strict=True):
        after = LIKELIHOOD.log_likelihood(moved_theta, ROWS[4:]).sum() + LIKELIHOOD.log_prior(moved_theta)
        before = LIKELIHOOD.log_likelihood(theta, ROWS).sum() + LIKELIHOOD.log_prior(theta)
        expected.append(after - before)
    assert weighed.log_weights.tolist() == pytest.approx(centred(torch.stack(expected)), rel=1e-12)
    assert torch.equal(weighed.samples, moved.samples)
    assert torch.equal(weighed.chain, SAMPLES.chain)
    assert 0 < weighed.log_weights_error < 1e-12


def test_samples_that_stay_are_weighted_by_the_forgotten_rows_alone() -> None:
    weighed = weigh_unmoved(LIKELIHOOD, SAMPLES, ROWS[:4])
    expected = torch.stack([-LIKELIHOOD.log_likelihood(theta, ROWS[:4]).sum() for theta in SAMPLES.samples])
    assert weighed.log_weights.tolist() == pytest.approx(centred(expected), rel=1e-12)
    assert weighed.samples is SAMPLES.samples
    mean, _ = LIKELIHOOD.posterior(ROWS)
    stays = MovedSamples(SAMPLES.samples, mean, mean, 0.0, 0.0)
    whole = weigh_moved(LIKELIHOOD, SAMPLES, stays, ROWS, ROWS[4:])
    assert whole.log_weights.tolist() == pytest.approx(weighed.log_weights.tolist(), rel=1e-11)


def test_the_weights_of_successive_deletions_telescope() -> None:
    """One by one, moved and unmoved, against one weighing of the last draws and the last rows."""
    samples, data, log_det = SAMPLES, ROWS, 0.0
    for step in range(5):
        if step % 2:
            samples = weigh_unmoved(LIKELIHOOD, samples, data[:1])
        else:
            moved = affine_map(LIKELIHOOD, samples.samples, data, torch.arange(1), samples.mean)
            samples, log_det = weigh_moved(LIKELIHOOD, samples, moved, data, data[1:]), log_det + moved.log_det
        data = data[1:]
    last = Potential(LIKELIHOOD, data).values(samples.samples)
    expected = Potential(LIKELIHOOD, ROWS).values(SAMPLES.samples) - last
    assert samples.log_weights.tolist() == pytest.approx(centred(expected), rel=1e-10)
    gap = samples.log_weights - torch.tensor(centred(expected), dtype=torch.float64)
    assert float(gap.abs().max()) < samples.log_weights_error < 1e-12


def test_a_weight_that_is_not_finite_is_a_numerical_failure() -> None:
    moved = shift(LIKELIHOOD, SAMPLES.samples, ROWS, torch.arange(4))
    broken = moved.samples.clone()
    broken[1] = math.nan
    with pytest.raises(NumericalFailure, match="1 of 3 samples have no finite weight"):
        weigh_moved(LIKELIHOOD, SAMPLES, replace(moved, samples=broken), ROWS, ROWS[4:])


def test_an_exact_map_gives_every_sample_the_ratio_of_the_evidences() -> None:
    """Then w = p(R)/p(S), with p(y) = N(y; 0, I + XXᵀ), for any sample: the determinant of the map included."""
    moved = affine_map(LIKELIHOOD, SAMPLES.samples, ROWS, torch.arange(4))
    ratio = Potential(LIKELIHOOD, ROWS).values(SAMPLES.samples) - Potential(LIKELIHOOD, ROWS[4:]).values(moved.samples)
    assert abs(moved.log_det) > 0.1
    expected = log_evidence(ROWS[4:]) - log_evidence(ROWS)
    assert (ratio + moved.log_det).tolist() == pytest.approx([expected] * 3, rel=1e-9)
    weighed = weigh_moved(LIKELIHOOD, SAMPLES, moved, ROWS, ROWS[4:])
    assert float(weighed.log_weights.abs().max()) <= 2 * weighed.log_weights_error


def log_evidence(data: Tensor) -> float:
    x, y = data[:, :-1], data[:, -1]
    covariance = torch.eye(len(data), dtype=data.dtype) + x @ x.T
    return float(MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


@pytest.mark.parametrize("offset", [0.0, 100.0], ids=["smaller after", "larger after"])
def test_rounding_is_limited_by_the_larger_density_and_the_number_of_terms(offset: float) -> None:
    """2γ(n + p) max|log p|, γ(k) = ku/(1 - ku): 9 rows and 2 parameters make 11 terms. Adding up takes three more."""
    moved = shift(LIKELIHOOD, SAMPLES.samples, ROWS, torch.arange(4))
    moved = replace(moved, samples=moved.samples + offset)
    earlier = replace(SAMPLES, log_weights=torch.tensor([0.0, 5.0, -1.0]).double(), log_weights_error=1e-9)
    weighed = weigh_moved(LIKELIHOOD, earlier, moved, ROWS, ROWS[4:])
    before = Potential(LIKELIHOOD, ROWS).values(SAMPLES.samples)
    after = Potential(LIKELIHOOD, ROWS[4:]).values(moved.samples)
    largest = max(float(before.abs().max()), float(after.abs().max()))
    assert (float(after.abs().max()) > float(before.abs().max())) == (offset > 0)
    adding = 3 * 2.0**-53 * (5 + float((before - after).abs().max()))
    assert weighed.log_weights_error == pytest.approx(1e-9 + 2 * 11 * 2.0**-53 * largest + adding, rel=1e-9)


def test_rounding_of_samples_that_stay_is_that_of_the_forgotten_rows() -> None:
    weighed = weigh_unmoved(LIKELIHOOD, SAMPLES, ROWS[:4])
    log_weights = Potential(LIKELIHOOD, ROWS[:4], with_prior=False).values(SAMPLES.samples)
    largest = float(log_weights.abs().max())
    assert weighed.log_weights_error == pytest.approx((6 + 3) * 2.0**-53 * largest, rel=1e-9)


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
    """On the log scale; four over the share of the draws that the weights leave."""
    log_weights = 0.3 * torch.randn(3000, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    estimate = estimate_divergence(log_weights, torch.arange(3).repeat_interleave(1000), 0.0, seed=0)
    down, up = math.log(estimate.value / estimate.low), math.log(estimate.high / estimate.value)
    share = relative_ess(log_weights)
    assert 0.9 < share < 0.95
    assert up / down == pytest.approx(4 / 2.5 / share, rel=1e-9)
    # The delta method: KL ≈ ½ var(log w), whose relative standard error over 3,000 independent draws is √(2/3000).
    assert up * share / 4 == pytest.approx(math.sqrt(2 / 3000), rel=0.15)


def test_chi_square_is_that_of_the_normalised_weights() -> None:
    """N/ESS - 1, for weights of any scale."""
    log_weights = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    estimate = estimate_chi_square(50 + log_weights, torch.zeros(400, dtype=torch.int64), 0.0, seed=0)
    assert estimate.value == pytest.approx(1 / relative_ess(log_weights) - 1, rel=1e-12)
    assert estimate.low < estimate.value < estimate.high


def test_a_small_chi_square_keeps_its_digits_and_is_twice_the_divergence() -> None:
    log_weights = 1e-9 * torch.randn(4000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    chain = torch.zeros(4000, dtype=torch.int64)
    chi_square = estimate_chi_square(log_weights, chain, 0.0, seed=0)
    assert chi_square.value == pytest.approx(2 * estimate_divergence(log_weights, chain, 0.0, seed=0).value, rel=1e-5)


def test_rounding_widens_the_interval_of_chi_square() -> None:
    """Weights that are wrong by e^(±e), the large ones upwards: 1 + χ² grows by less than e^(4e)."""
    log_weights, error = torch.randn(1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64), 1e-3
    chain = torch.zeros(1000, dtype=torch.int64)
    exact = estimate_chi_square(log_weights, chain, 0.0, seed=0)
    widened = estimate_chi_square(log_weights, chain, error, seed=0)
    weights = log_weights.exp()
    above = (weights - weights.square().mean() / weights.mean()).sign()
    worst = estimate_chi_square(log_weights + error * above, chain, 0.0, seed=0)
    slack = (1 + exact.value) * math.expm1(4 * error)
    assert widened.high - exact.high == pytest.approx(slack, rel=1e-9)
    assert 0.2 * slack < worst.value - exact.value < slack


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
    interval = _interval(1e-3, spread=1.0, slack=0.0, share=1.0)
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


def test_the_relative_ess_by_hand() -> None:
    """One weight of 3 and three of 1: 6²/(4·12)."""
    assert relative_ess(torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64).log()) == pytest.approx(0.75)
    assert relative_ess(torch.full((9,), -800.0, dtype=torch.float64)) == pytest.approx(1.0)


def test_arviz_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml.certify.importance; print(sorted({'arviz', 'xarray', 'torch'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"


def test_a_chi_square_whose_rounding_is_unlimited_is_infinite() -> None:
    estimate = estimate_chi_square(torch.linspace(-1, 1, 40, dtype=torch.float64), torch.arange(40) % 4, 1e9, seed=0)
    assert estimate.low == 0.0
    assert estimate.high > 1e300
