from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.sample_set import SampleSet

WEIGHTS = torch.linspace(-1, 1, 40, dtype=torch.float64)


def numbers(draws: int) -> Tensor:
    return torch.arange(draws) % 3


def random_samples(seed: int, draws: int = 40, parameters: int = 3) -> SampleSet:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(parameters, parameters, generator=generator, dtype=torch.float64)
    normal = torch.randn(draws, parameters, generator=generator, dtype=torch.float64)
    return SampleSet(normal @ mix + mix[0], numbers(draws))


def moment_matched(samples: SampleSet) -> MultivariateNormal:
    return MultivariateNormal(
        samples.samples.mean(0), torch.cov(samples.samples.T).reshape(2 * samples.samples.shape[1:])
    )


def test_moments() -> None:
    sample_set = random_samples(0)
    assert torch.allclose(sample_set.mean, sample_set.samples.mean(0), rtol=0, atol=1e-14)
    assert torch.allclose(sample_set.covariance, torch.cov(sample_set.samples.T), rtol=0, atol=1e-14)


def test_weighted_moments_are_those_of_repeated_draws() -> None:
    """A weight of three is three draws: the moments of the repeated draws, but for the factor of the covariance."""
    sample_set, counts = random_samples(0), 1 + torch.arange(40) % 3
    repeated = sample_set.samples.repeat_interleave(counts, 0)
    weighted = dataclasses.replace(sample_set, log_weights=counts.double().log() - 7.0)
    assert float(weighted.weights.sum()) == pytest.approx(1.0)
    assert torch.allclose(weighted.weights * counts.sum(), counts.double())
    assert torch.allclose(weighted.mean, repeated.mean(0), rtol=0, atol=1e-14)
    shares = counts.double() / counts.sum()
    expected = torch.cov(repeated.T, correction=0) / (1 - shares.square().sum())
    assert torch.allclose(weighted.covariance, expected, rtol=0, atol=1e-13)


def test_moving_it_to_a_device_keeps_its_weights() -> None:
    weighted = dataclasses.replace(random_samples(0), log_weights=WEIGHTS, log_weights_error=0.25)
    assert weighted.to(torch.device("cpu")).to_bytes() == weighted.to_bytes()


@pytest.mark.parametrize("parameters", [1, 3, 6])
def test_moment_matched_kl_is_that_of_the_two_full_gaussians(parameters: int) -> None:
    first, second = random_samples(1, parameters=parameters), random_samples(2, parameters=parameters)
    expected = float(kl_divergence(moment_matched(first), moment_matched(second)))
    assert first.moment_matched_kl(second) == pytest.approx(expected, rel=1e-9)
    assert first.moment_matched_kl(second) != pytest.approx(second.moment_matched_kl(first), rel=1e-2)


def test_a_set_is_at_no_distance_from_itself() -> None:
    assert abs(random_samples(3).moment_matched_kl(random_samples(3))) < 1e-15


def test_a_tiny_shift_keeps_its_digits() -> None:
    """KL of a pure shift z is ½ zᵀC⁻¹z, here 1e-13: a difference of traces and log-determinants would lose it."""
    sample_set, z = random_samples(4), torch.tensor([3e-7, -2e-7, 1e-7], dtype=torch.float64)
    expected = 0.5 * float(z @ torch.linalg.solve(sample_set.covariance, z))
    assert expected < 1e-12
    assert sample_set.moment_matched_kl(SampleSet(sample_set.samples + z, sample_set.chain)) == pytest.approx(
        expected, rel=1e-6, abs=0
    )


def with_column(values: Tensor) -> SampleSet:
    return SampleSet(torch.cat([random_samples(5).samples, values.reshape(-1, 1)], 1), numbers(40))


@pytest.mark.parametrize(
    "singular",
    [
        random_samples(5, draws=4, parameters=4),
        random_samples(5, draws=2, parameters=4),
        with_column(torch.full((40,), 2.5, dtype=torch.float64)),
        with_column(random_samples(5).samples.sum(1)),
        with_column(1e9 * random_samples(5).samples[:, 0]),
        with_column(torch.linspace(0, 1e200, 40, dtype=torch.float64)),
    ],
    ids=["as many draws as parameters", "fewer", "constant", "sum of others", "multiple", "overflow"],
)
def test_a_singular_covariance_asks_for_more_samples(singular: SampleSet) -> None:
    regular = random_samples(6, parameters=4)
    for first, second in ((singular, regular), (regular, singular)):
        with pytest.raises(NumericalFailure, match="keep more samples"):
            first.moment_matched_kl(second)


def test_sets_of_different_models_cannot_be_compared() -> None:
    with pytest.raises(InvalidInput, match="same model"):
        random_samples(0, parameters=3).moment_matched_kl(random_samples(0, parameters=4))


def test_bytes_round_trip_exactly_and_are_reproducible() -> None:
    sample_set = random_samples(7)
    assert set(load(sample_set.to_bytes())) == {"samples", "chain"}
    back = SampleSet.from_bytes(sample_set.to_bytes())
    assert torch.equal(back.samples, sample_set.samples)
    assert torch.equal(back.chain, sample_set.chain)
    assert back.to_bytes() == sample_set.to_bytes()
    assert not bool(back.log_weights.any())
    assert back.log_weights_error == 0
    view = SampleSet(sample_set.samples[::2], sample_set.chain[::2])
    assert torch.equal(SampleSet.from_bytes(view.to_bytes()).samples, sample_set.samples[::2])


def test_bytes_hold_the_weights_of_a_set_that_has_some() -> None:
    weighted = dataclasses.replace(random_samples(7), log_weights=WEIGHTS, log_weights_error=1e-9)
    assert set(load(weighted.to_bytes())) == {"samples", "chain", "log_weights", "log_weights_error"}
    back = SampleSet.from_bytes(weighted.to_bytes())
    assert torch.equal(back.log_weights, WEIGHTS)
    assert back.log_weights_error == 1e-9
    assert back.to_bytes() == weighted.to_bytes()


def test_even_weights_that_are_not_exact_are_stored() -> None:
    back = SampleSet.from_bytes(dataclasses.replace(random_samples(7), log_weights_error=1e-9).to_bytes())
    assert back.log_weights_error == 1e-9


ROWS = torch.zeros(4, 2, dtype=torch.float64)
FILE = {"samples": ROWS, "chain": numbers(4), "log_weights": torch.zeros(4).double()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable safetensors"),
        (random_samples(0).to_bytes()[:-8], "not a readable safetensors"),
        (save({"samples": ROWS}), "save two"),
        (save({"samples": ROWS, "chain": numbers(4), "more": ROWS.clone()}), "save two"),
        (save(FILE), "save two"),
        (save({**FILE, "log_weights_error": torch.zeros(2).double()}), "one torch.float64 number"),
        (save({**FILE, "log_weights_error": torch.zeros(1)}), "one torch.float64 number"),
        (save({**FILE, "log_weights_error": torch.tensor([-1.0]).double()}), "at least 0"),
        (save({"samples": ROWS.float(), "chain": numbers(4)}), "float64"),
    ],
)
def test_bad_bytes_are_invalid_input(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SampleSet.from_bytes(content)


@pytest.mark.parametrize(
    ("samples", "chain", "message"),
    [
        (ROWS.float(), numbers(4), "float64"),
        (ROWS[:1], numbers(1), "at least two draws"),
        (ROWS[0], numbers(2), "at least two draws"),
        (ROWS[:, :0], numbers(4), "at least two draws"),
        (torch.full_like(ROWS, math.nan), numbers(4), "NaN"),
        (torch.full_like(ROWS, math.inf), numbers(4), "infinity"),
        (ROWS, numbers(3), "each of the 4 draws"),
        (ROWS, numbers(4).double(), "int64"),
        (ROWS, numbers(4).reshape(4, 1), "int64"),
        (ROWS, numbers(4) - 1, "from 0"),
    ],
)
def test_a_malformed_set_is_invalid_input(samples: Tensor, chain: Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SampleSet(samples, chain)


@pytest.mark.parametrize(
    ("log_weights", "error", "message"),
    [
        (torch.zeros(4), 0.0, "float64"),
        (torch.zeros(3).double(), 0.0, "each of the 4 draws"),
        (torch.zeros(4, 1).double(), 0.0, "each of the 4 draws"),
        (torch.tensor([0.0, math.nan, 0.0, 0.0]).double(), 0.0, "NaN or infinity"),
        (torch.tensor([0.0, -math.inf, 0.0, 0.0]).double(), 0.0, "NaN or infinity"),
        (torch.zeros(4).double(), math.nan, "at least 0"),
        (torch.zeros(4).double(), math.inf, "at least 0"),
    ],
)
def test_malformed_weights_are_invalid_input(log_weights: Tensor, error: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SampleSet(ROWS, numbers(4), log_weights, error)


def test_it_is_frozen() -> None:
    sample_set = random_samples(0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample_set.samples = ROWS  # type: ignore[misc]
