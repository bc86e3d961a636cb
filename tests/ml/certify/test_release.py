from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ml.certify.release import Release, bound_advantages
from ml.errors import InvalidInput


def normal_cdf(x: float, mean: float, std: float) -> float:
    return math.erfc((mean - x) / (std * math.sqrt(2))) / 2


def total_variation(mean: float, std: float) -> float:
    """Total variation of N(0, 1) and N(mean, std²), std > 1, from the two points where their densities cross."""
    a, b, c = 1 - std**-2, 2 * mean / std**2, -(mean**2 / std**2 + 2 * math.log(std))
    root = math.sqrt(b**2 - 4 * a * c)
    low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
    inner: Callable[[float, float], float] = lambda m, s: normal_cdf(high, m, s) - normal_cdf(low, m, s)  # noqa: E731
    return inner(0, 1) - inner(mean, std)


def gaussian_kl(gap: float, std: float, other: float) -> float:
    return math.log(other / std) + (std**2 + gap**2) / (2 * other**2) - 0.5


@pytest.mark.parametrize("shift", [1e-9, 1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("draws", [1, 10, 100])
def test_the_bound_holds_for_draws_of_a_shifted_gaussian(shift: float, draws: int) -> None:
    """The mean of T draws is sufficient, so the exact total variation is erf(shift √T / √8)."""
    exact = math.erf(shift * math.sqrt(draws / 8))
    (release,) = bound_advantages(shift**2 / 2, (draws,))
    assert exact <= release.advantage <= 1
    # The bound is tight up to √(π/2) where the advantage is small, which is the slack of Pinsker's inequality.
    if exact < 0.5:
        assert release.advantage <= 1.2534 * exact / (1 - exact)


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("std", [1.001, 1.1, 3.0, 50.0])
def test_the_bound_holds_for_different_widths_and_both_directions(mean: float, std: float) -> None:
    exact = total_variation(mean, std)
    assert exact > 0
    for divergence in (gaussian_kl(mean, 1, std), gaussian_kl(mean, std, 1)):
        assert exact <= bound_advantages(divergence)[0].advantage


@pytest.mark.parametrize("nats", [1e-300, 1e-20, 1e-8])
def test_a_tiny_divergence_keeps_its_digits(nats: float) -> None:
    assert bound_advantages(nats, (1,))[0].advantage == pytest.approx(math.sqrt(nats / 2), rel=1e-14, abs=0)


def test_draws_that_are_picked_by_weight_cost_their_number_squared() -> None:
    releases = bound_advantages(1e-6, picked_by_weight=True)
    assert [release.nats for release in releases] == pytest.approx([1e-6, 1e-4, 1e-2])
    assert [release.advantage for release in releases] == pytest.approx(
        [(nats / 2) ** 0.5 for nats in (1e-6, 1e-4, 1e-2)]
    )


def test_the_smaller_of_the_two_inequalities_is_used() -> None:
    small, large = bound_advantages(0.159, (10, 11))
    assert small.advantage == pytest.approx(math.sqrt(1.59 / 2))
    assert large.advantage == pytest.approx(math.sqrt(1 - math.exp(-1.749)))
    assert large.advantage < math.sqrt(1.749 / 2)


def test_the_divergence_is_linear_in_the_draws() -> None:
    assert [(release.draws, release.nats) for release in bound_advantages(0.25)] == [(1, 0.25), (10, 2.5), (100, 25.0)]
    assert bound_advantages(0.0) == (Release(1, 0.0, 0.0), Release(10, 0.0, 0.0), Release(100, 0.0, 0.0))


@pytest.mark.parametrize("unknown", [math.inf, math.nan, 1e308])
def test_without_a_bound_the_attacker_may_be_certain(unknown: float) -> None:
    assert [release.advantage for release in bound_advantages(unknown)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("epsilon", "draws"), [(-1e-9, (1,)), (0.1, (1, 0))])
def test_impossible_arguments_are_refused(epsilon: float, draws: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="pass"):
        bound_advantages(epsilon, draws)
