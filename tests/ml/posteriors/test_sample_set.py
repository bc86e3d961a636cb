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


def numbers(draws: int) -> Tensor:
    return torch.arange(draws) % 3


def drawn(seed: int, draws: int = 40, parameters: int = 3) -> SampleSet:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(parameters, parameters, generator=generator, dtype=torch.float64)
    normal = torch.randn(draws, parameters, generator=generator, dtype=torch.float64)
    return SampleSet(normal @ mix + mix[0], numbers(draws))


def with_moments_of(one: SampleSet) -> MultivariateNormal:
    return MultivariateNormal(one.samples.mean(0), torch.cov(one.samples.T).reshape(2 * one.samples.shape[1:]))


def test_moments() -> None:
    one = drawn(0)
    assert torch.allclose(one.mean, one.samples.mean(0), rtol=0, atol=1e-15)
    assert torch.allclose(one.covariance, torch.cov(one.samples.T), rtol=0, atol=1e-14)


@pytest.mark.parametrize("parameters", [1, 3, 6])
def test_moment_matched_kl_is_that_of_the_two_full_gaussians(parameters: int) -> None:
    one, other = drawn(1, parameters=parameters), drawn(2, parameters=parameters)
    expected = float(kl_divergence(with_moments_of(one), with_moments_of(other)))
    assert one.moment_matched_kl(other) == pytest.approx(expected, rel=1e-9)
    assert one.moment_matched_kl(other) != pytest.approx(other.moment_matched_kl(one), rel=1e-2)


def test_a_set_is_at_no_distance_from_itself() -> None:
    assert abs(drawn(3).moment_matched_kl(drawn(3))) < 1e-15


def test_a_tiny_shift_keeps_its_digits() -> None:
    """KL of a pure shift z is ½ zᵀC⁻¹z, here 1e-13: a difference of traces and log-determinants would lose it."""
    one, z = drawn(4), torch.tensor([3e-7, -2e-7, 1e-7], dtype=torch.float64)
    expected = 0.5 * float(z @ torch.linalg.solve(one.covariance, z))
    assert expected < 1e-12
    assert one.moment_matched_kl(SampleSet(one.samples + z, one.chain)) == pytest.approx(expected, rel=1e-6, abs=0)


def with_column(values: Tensor) -> SampleSet:
    return SampleSet(torch.cat([drawn(5).samples, values.reshape(-1, 1)], 1), numbers(40))


@pytest.mark.parametrize(
    "singular",
    [
        drawn(5, draws=4, parameters=4),
        drawn(5, draws=2, parameters=4),
        with_column(torch.full((40,), 2.5, dtype=torch.float64)),
        with_column(drawn(5).samples.sum(1)),
        with_column(1e9 * drawn(5).samples[:, 0]),
        with_column(torch.linspace(0, 1e200, 40, dtype=torch.float64)),
    ],
    ids=["as many draws as parameters", "fewer", "constant", "sum of others", "multiple", "overflow"],
)
def test_a_singular_covariance_asks_for_more_samples(singular: SampleSet) -> None:
    regular = drawn(6, parameters=4)
    for one, other in ((singular, regular), (regular, singular)):
        with pytest.raises(NumericalFailure, match="keep more samples"):
            one.moment_matched_kl(other)


def test_sets_of_different_models_cannot_be_compared() -> None:
    with pytest.raises(InvalidInput, match="same model"):
        drawn(0, parameters=3).moment_matched_kl(drawn(0, parameters=4))


def test_bytes_round_trip_exactly_and_are_reproducible() -> None:
    one = drawn(7)
    assert set(load(one.to_bytes())) == {"samples", "chain"}
    back = SampleSet.from_bytes(one.to_bytes())
    assert torch.equal(back.samples, one.samples)
    assert torch.equal(back.chain, one.chain)
    assert back.to_bytes() == one.to_bytes()
    view = SampleSet(one.samples[::2], one.chain[::2])
    assert torch.equal(SampleSet.from_bytes(view.to_bytes()).samples, one.samples[::2])


ROWS = torch.zeros(4, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable safetensors"),
        (drawn(0).to_bytes()[:-8], "not a readable safetensors"),
        (save({"samples": ROWS}), "exactly two"),
        (save({"samples": ROWS, "chain": numbers(4), "more": ROWS.clone()}), "exactly two"),
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


def test_it_is_frozen() -> None:
    one = drawn(0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.samples = ROWS  # type: ignore[misc]
