from __future__ import annotations

import math

import pytest

from ml.errors import InvalidInput
from ml.inference.cyclical import Cyclical


def test_the_schedule_of_a_cycle() -> None:
    step_size = Cyclical(0.4, length=8, exploration=0.5)
    assert step_size.at(1, 100) == 0.4 / 100
    assert step_size.at(3, 100) == pytest.approx(0.2 / 100 * (1 + math.sqrt(0.5)), rel=1e-15)
    assert step_size.at(5, 100) == pytest.approx(0.2 / 100, rel=1e-15)
    assert step_size.at(8, 100) == pytest.approx(0.2 / 100 * (1 - math.cos(math.pi / 8)), rel=1e-12)
    assert [step_size.at(t, 1) for t in range(1, 9)] == [step_size.at(t, 1) for t in range(17, 25)]


def test_only_iterates_after_the_exploration_are_draws() -> None:
    step_size = Cyclical(0.4, length=4, exploration=0.5)
    assert [step_size.samples(t) for t in range(1, 9)] == [False, False, True, True] * 2
    assert all(Cyclical(0.4, length=4, exploration=0.0).samples(t) for t in range(1, 9))


@pytest.mark.parametrize(
    ("scale", "length", "exploration", "message"),
    [
        (0.0, 4, 0.5, "scale"),
        (math.nan, 4, 0.5, "scale"),
        (1.0, 1, 0.5, "length"),
        (1.0, 4, 1.0, "exploration"),
        (1.0, 4, -0.1, "exploration"),
        (1.0, 4, math.nan, "exploration"),
    ],
)
def test_a_schedule_outside_its_range_is_invalid_input(
    scale: float, length: int, exploration: float, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Cyclical(scale, length, exploration)
