import dataclasses
import math

import mpmath
import pytest
import torch
from safetensors.torch import load, save
from torch.distributions import Normal, kl_divergence

from ml.errors import InvalidInput
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


POSTERIOR = MeanFieldGaussian(tensor(1.0, -2.0, 3.0, 0.5).reshape(2, 2), tensor(0.1, 0.2, 0.3, 0.4).reshape(2, 2))


def test_flat_is_every_mean_and_then_every_std() -> None:
    assert POSTERIOR.flat().tolist() == [1.0, -2.0, 3.0, 0.5, 0.1, 0.2, 0.3, 0.4]
    back = POSTERIOR.with_flat(POSTERIOR.flat() * 2)
    assert torch.equal(back.mean, POSTERIOR.mean * 2)
    assert torch.equal(back.std, POSTERIOR.std * 2)


def test_kl_agrees_with_torch_distributions() -> None:
    other = MeanFieldGaussian(POSTERIOR.mean + 0.3, POSTERIOR.std * 1.7)
    expected = kl_divergence(Normal(POSTERIOR.mean, POSTERIOR.std), Normal(other.mean, other.std)).sum()
    assert POSTERIOR.kl(other) == pytest.approx(float(expected), rel=1e-12)
    assert POSTERIOR.kl(other) != pytest.approx(other.kl(POSTERIOR), rel=1e-2)
    assert POSTERIOR.kl(POSTERIOR) == 0.0


@pytest.mark.parametrize("change", [0.07, 4.5e-4, *(0.7 * 10.0**-exponent for exponent in range(3, 15))])
@pytest.mark.parametrize("sign", [-1, 1])
def test_kl_keeps_its_digits_when_it_is_tiny(change: float, sign: int) -> None:
    """The textbook formula cancels: here the same formula in fifty digits is the truth."""
    std, other = 0.05, 0.05 * (1 + sign * change)
    gap = 1e-3 * abs(std - other)
    with mpmath.workdps(60):
        s, o, g = mpmath.mpf(std), mpmath.mpf(other), mpmath.mpf(gap)
        truth = mpmath.log(o / s) + (s**2 + g**2) / (2 * o**2) - mpmath.mpf(1) / 2
    computed = float(gaussian_kl(tensor(gap), tensor(std), tensor(other)))
    assert computed == pytest.approx(float(truth), rel=1e-11, abs=0)


def test_bytes_round_trip_exactly_and_are_reproducible() -> None:
    content = POSTERIOR.to_bytes()
    assert set(load(content)) == {"mean", "std"}
    assert content == MeanFieldGaussian(POSTERIOR.mean.clone(), POSTERIOR.std.clone()).to_bytes()
    back = MeanFieldGaussian.from_bytes(content)
    assert torch.equal(back.mean, POSTERIOR.mean)
    assert torch.equal(back.std, POSTERIOR.std)


def test_mean_and_std_may_be_one_tensor() -> None:
    shared = MeanFieldGaussian(POSTERIOR.std, POSTERIOR.std)
    back = MeanFieldGaussian.from_bytes(shared.to_bytes())
    assert torch.equal(back.flat(), shared.flat())


def test_bytes_of_a_view_hold_the_view_alone() -> None:
    view = MeanFieldGaussian(POSTERIOR.mean.T, POSTERIOR.std.T)
    assert torch.equal(MeanFieldGaussian.from_bytes(view.to_bytes()).mean, POSTERIOR.mean.T)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable safetensors"),
        (b"not tensors at all", "not a readable safetensors"),
        (POSTERIOR.to_bytes()[:-8], "not a readable safetensors"),
        (save({"mean": tensor(1.0)}), "exactly two"),
        (save({"mean": tensor(1.0), "std": tensor(1.0), "more": tensor(1.0)}), "exactly two"),
        (save({"mean": tensor(1.0).float(), "std": tensor(1.0)}), "float64"),
        (save({"mean": tensor(1.0), "std": tensor(-1.0)}), "std"),
    ],
)
def test_bad_bytes_are_invalid_input(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeanFieldGaussian.from_bytes(content)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (tensor(math.nan), tensor(1.0), "NaN"),
        (tensor(1.0), tensor(math.inf), "infinity"),
        (tensor(1.0), tensor(0.0), "> 0"),
        (tensor(1.0), tensor(-0.1), "> 0"),
        (tensor(1.0), tensor(1.0, 2.0), "equal shape"),
        (tensor(1.0).float(), tensor(1.0), "float64"),
    ],
)
def test_a_malformed_posterior_is_invalid_input(mean: torch.Tensor, std: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeanFieldGaussian(mean, std)


def test_it_is_frozen_and_moves_between_devices() -> None:
    assert torch.equal(POSTERIOR.to(torch.device("cpu")).std, POSTERIOR.std)
    with pytest.raises(dataclasses.FrozenInstanceError):
        POSTERIOR.mean = POSTERIOR.std  # type: ignore[misc]


@pytest.mark.parametrize("ratio", [1e-12, 1e-9, 1e-3, 0.0999, 0.1001])
def test_the_divergence_from_a_much_wider_gaussian_is_finite(ratio: float) -> None:
    computed = float(gaussian_kl(tensor(0.0), tensor(ratio), tensor(1.0)))
    assert computed == pytest.approx(0.5 * (ratio**2 - 1 - 2 * math.log(ratio)), rel=1e-12)
