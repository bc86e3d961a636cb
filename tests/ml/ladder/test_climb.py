from __future__ import annotations

import math
import time

import pytest

from ml.certify.certificate import Certificate, Level
from ml.errors import NumericalFailure
from ml.ladder.climb import Climbed, Tried, Way, climb, silent
from ml.ladder.policy import Policy
from ml.ladder.variational import Step
from vocabulary.rungs import RungName


def certificate(epsilon: float, level: Level = "estimated") -> Certificate:
    return Certificate(epsilon, math.nan, level, "", "", 1, (), None, ())


def leading_to(name: str, epsilon: float, level: Level = "estimated") -> Way[str]:
    return lambda below: Tried(f"{below.posterior} {name}" if below else name, certificate(epsilon, level), 0.5, 7)


def failing(_: Tried[str] | None) -> Tried[str]:
    raise NumericalFailure("it is NaN")


WAYS: dict[RungName, Way[str]] = {
    "influence": leading_to("a", 0.2),
    "warm": leading_to("b", 0.1),
    "retrain": leading_to("c", 0.0, "retrained"),
}


def climbed(policy: Policy, ways: dict[RungName, Way[str]] = WAYS) -> Climbed[str]:
    return climb(ways, policy, time.perf_counter(), silent)


def test_rungs_are_tried_until_one_meets_the_policy() -> None:
    found = climbed(Policy(0.1, level="estimated"))
    assert (found.posterior, found.certificate.epsilon, found.policy_met) == ("a b", 0.1, True)
    assert [(rung.name, rung.epsilon, rung.steps) for rung in found.rungs] == [("influence", 0.2, 7), ("warm", 0.1, 7)]


def test_what_is_to_be_proved_leaves_only_retraining() -> None:
    assert climbed(Policy(0.5, level="proved")).posterior == "c"
    with pytest.raises(NumericalFailure, match="allow influence, warm or retrain"):
        climbed(Policy(0.5, level="proved", rungs=("influence", "warm")))


def test_a_failure_is_told_and_the_next_rung_tried() -> None:
    found = climbed(Policy(0.1, level="estimated"), {**WAYS, "influence": failing})
    assert found.posterior == "b"
    assert [(rung.failure, rung.level) for rung in found.rungs] == [("it is NaN", "none"), (None, "estimated")]
    with pytest.raises(NumericalFailure, match="influence: it is NaN; warm: it is NaN"):
        climbed(
            Policy(0.1, level="estimated", rungs=("influence", "warm")), {**WAYS, "influence": failing, "warm": failing}
        )


def test_no_rung_is_begun_after_the_budget() -> None:
    found = climb(WAYS, Policy(0.1, level="estimated", seconds=5.0), time.perf_counter() - 10, silent)
    assert ([rung.name for rung in found.rungs], found.policy_met) == (["influence"], False)
    assert found.seconds > 10


def test_progress_and_steps_are_told() -> None:
    progress: list[tuple[str, float]] = []
    steps: list[Step] = []
    climb(WAYS, Policy(0.1, level="estimated"), time.perf_counter(), lambda *at: progress.append(at), steps.append)
    assert progress == [("influence", 0.0), ("warm", 0.0), ("done", 1.0)]
    assert [(step.rung, step.step, step.residual) for step in steps] == [("influence", 7, 0.5), ("warm", 7, 0.5)]
