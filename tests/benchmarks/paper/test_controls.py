"""The arithmetic of controls, on scores made up for it."""

from __future__ import annotations

import pytest

from benchmarks.paper.bnn import NetworkComparison, NetworkWay, Score
from benchmarks.paper.controls import Effect, drift, effect, is_nearer_than_paper, target


def way(name: str, error: float, loss: float, retained: float) -> NetworkWay:
    return NetworkWay(name, Score(error, loss, retained, test_error=12.0, test_loss=0.4), seconds=1.0)


def comparison(*ways: NetworkWay) -> NetworkComparison:
    return NetworkComparison(
        case="lenet-sgld",
        removed=1_000,
        n=60_000,
        seed=0,
        ways={entry.name: entry for entry in ways},
        ours="shift",
        training_seconds=1.0,
        residual_ours=0.1,
        residual_paper=0.5,
    )


MEASURED = comparison(
    way("nothing", 30.0, 0.80, 29.0),
    way("paper", 31.0, 0.83, 29.0),
    way("shift", 34.0, 0.90, 29.1),
    way("descent", 26.0, 0.75, 21.0),
    way("descent control", 22.0, 0.66, 20.5),
    NetworkWay("reweight", None, 0.0, "refused: 2 % of 40 draws left"),
    way("retrained", 34.0, 0.88, 28.0),
    way("again", 36.0, 0.92, 30.0),
)


def test_training_on_is_taken_out() -> None:
    """Descent classifies the forgotten rows better than the original: only its control shows that it forgot some."""
    forgot = effect(MEASURED, "descent")
    assert forgot is not None
    assert forgot.forgotten_error == pytest.approx(4.0)
    assert forgot.forgotten_loss == pytest.approx(0.09)
    assert forgot.retained_error == pytest.approx(0.5)
    trained_on = drift(MEASURED, "descent")
    assert trained_on is not None
    assert trained_on.retained_error == pytest.approx(-8.5)


def test_steps_that_vanish_with_nothing_removed_are_compared_with_doing_nothing() -> None:
    assert effect(MEASURED, "paper") == Effect(1.0, pytest.approx(0.03), 0.0)
    assert drift(MEASURED, "paper") == Effect(0.0, 0.0, 0.0)


def test_the_target_is_retrained_less_original() -> None:
    assert target(MEASURED) == Effect(5.0, pytest.approx(0.1), 0.0)


def test_nearer_than_the_paper_by_the_difference_not_by_the_score() -> None:
    assert is_nearer_than_paper(MEASURED, "shift") is True
    assert is_nearer_than_paper(MEASURED, "descent") is True  # 0.09 of 0.1, though its loss is below the original's
    farther = comparison(*MEASURED.ways.values(), way("descent control", 30.0, 0.80, 29.0))
    assert is_nearer_than_paper(farther, "descent") is False


def test_what_was_refused_has_no_effect() -> None:
    assert effect(MEASURED, "reweight") is None
    assert is_nearer_than_paper(MEASURED, "reweight") is None
