from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest
import torch

from ml.certify.certificate import Certificate
from ml.errors import NumericalFailure
from ml.ladder.climb import Candidate, Outcome, Progress, Rung, RungRecord, Step, climb, conclude
from ml.ladder.policy import Policy
from vocabulary.levels import Level
from vocabulary.rungs import RungName

LETTERS = Candidate[str]
ESTIMATED = Policy(0.1, level="estimated")


def certificate(epsilon: float, level: Level = "estimated") -> Certificate:
    return Certificate(epsilon, math.nan, level, "", "", 1, (), None, ())


def rung_to(letter: str, epsilon: float, level: Level = "estimated") -> Rung[LETTERS]:
    """A rung that appends a letter to the posterior below it."""

    def rung(below: LETTERS | None) -> LETTERS:
        posterior = f"{below.posterior} {letter}" if below else letter
        return Candidate(posterior=posterior, certificate=certificate(epsilon, level), steps=7)

    return rung


def failing(_: LETTERS | None) -> LETTERS:
    raise NumericalFailure("it is NaN")


def without_certificate(_: LETTERS | None) -> LETTERS:
    return Candidate(posterior="a", certificate=None, solver="cholesky", at_least=3.0)


RUNGS: dict[RungName, Rung[LETTERS]] = {
    "influence": rung_to("a", 0.2),
    "warm": rung_to("b", 0.1),
    "retrain": rung_to("c", 0.0, "retrained"),
}


def outcome(
    policy: Policy,
    rungs: dict[RungName, Rung[LETTERS]] = RUNGS,
    strongest: Level = "estimated",
    progress: Progress | None = None,
) -> Outcome[str]:
    progress = progress or Progress(policy.seconds)
    candidate, records = climb(rungs, policy, progress, strongest)
    return conclude(candidate, records, policy, progress)


def test_rungs_are_tried_until_one_meets_the_policy() -> None:
    result = outcome(ESTIMATED)
    assert (result.posterior, result.certificate.epsilon, result.policy_met) == ("a b", 0.1, True)
    records = [(record.name, record.epsilon, record.steps) for record in result.rungs]
    assert records == [("influence", 0.2, 7), ("warm", 0.1, 7)]


def test_a_policy_that_no_rung_meets_is_missed_after_the_last() -> None:
    result = outcome(Policy(0.05, level="estimated", rungs=("influence", "warm")))
    assert (result.posterior, result.policy_met) == ("a b", False)


@pytest.mark.parametrize(
    ("strongest", "required", "posterior"),
    [
        ("estimated", "estimated", "a"),
        ("estimated", "proved", "c"),
        ("estimated", "retrained", "c"),
        ("proved", "estimated", "a"),
        ("proved", "proved", "a b c"),
        ("proved", "retrained", "c"),
    ],
)
def test_a_level_that_only_retraining_reaches_leaves_only_retraining(
    strongest: Level, required: Level, posterior: str
) -> None:
    assert outcome(Policy(0.5, level=required), strongest=strongest).posterior == posterior


def test_a_policy_that_allows_no_rung_of_the_ladder_fails() -> None:
    with pytest.raises(NumericalFailure, match="'estimated' at most without retraining: allow the rung retrain"):
        outcome(Policy(0.5, level="proved", rungs=("influence", "warm")))
    with pytest.raises(NumericalFailure, match="allow influence, warm or retrain"):
        outcome(Policy(0.5, level="estimated", rungs=("newton",)))


def test_a_failed_rung_is_recorded_and_the_next_one_tried() -> None:
    result = outcome(ESTIMATED, {**RUNGS, "influence": failing})
    assert result.posterior == "b"
    assert [(record.failure, record.level) for record in result.rungs] == [("it is NaN", "none"), (None, "estimated")]
    with pytest.raises(NumericalFailure, match=r"^influence, warm: it is NaN$"):
        outcome(replace(ESTIMATED, rungs=("influence", "warm")), {**RUNGS, "influence": failing, "warm": failing})


def test_a_candidate_that_could_not_be_certified_says_why() -> None:
    def refused(_: LETTERS | None) -> LETTERS:
        return replace(rung_to("a", math.inf, "none")(None), failure="too few draws")

    result = outcome(ESTIMATED, {**RUNGS, "influence": refused})
    assert [record.failure for record in result.rungs] == ["too few draws", None]


def test_a_rung_after_a_failure_starts_from_the_last_candidate() -> None:
    result = outcome(ESTIMATED, {"influence": rung_to("a", 0.2), "newton": failing, "warm": rung_to("b", 0.1)})
    assert result.posterior == "a b"


def test_a_candidate_without_certificate_meets_nothing_and_is_recorded_with_its_lower_bound() -> None:
    result = outcome(ESTIMATED, {**RUNGS, "influence": without_certificate})
    record = result.rungs[0]
    assert (record.epsilon, record.level, record.at_least, record.solver) == (math.inf, "none", 3.0, "cholesky")
    assert result.posterior == "a b"
    with pytest.raises(ValueError, match="certify it first"):
        outcome(ESTIMATED, {"influence": without_certificate})


def test_no_rung_is_started_after_the_budget() -> None:
    progress = Progress(5.0, started=time.perf_counter() - 10)
    result = outcome(ESTIMATED, progress=progress)
    assert ([record.name for record in result.rungs], result.policy_met) == (["influence"], False)
    assert result.seconds > 10


def test_phases_are_reported() -> None:
    phases: list[tuple[str, float]] = []
    outcome(ESTIMATED, progress=Progress(None, lambda *phase: phases.append(phase)))
    assert phases == [("influence", 0.0), ("warm", 0.0), ("done", 1.0)]


def test_a_step_carries_the_seconds_since_the_start() -> None:
    steps: list[Step] = []
    Progress(None, on_step=steps.append, started=time.perf_counter() - 10).step("warm", 3, 0.5)
    (step,) = steps
    assert (step.rung, step.step, step.residual) == ("warm", 3, 0.5)
    assert 10 < step.seconds < 20


def test_the_hessian_of_a_ladder_is_part_of_its_outcome() -> None:
    candidate, hessian = rung_to("a", 0.1)(None), torch.eye(2)
    assert conclude(candidate, (), ESTIMATED, Progress(None), hessian).hessian is hessian
    assert outcome(ESTIMATED).hessian is None


def test_a_rung_without_a_bound_is_plain_json() -> None:
    record = RungRecord("influence", 1, math.inf, "none", 0.5)
    assert json.loads(json.dumps(record.to_dict(), allow_nan=False)) == {
        "name": "influence",
        "steps": 1,
        "epsilon": None,
        "level": "none",
        "seconds": 0.5,
        "at_least": 0.0,
        "failure": None,
        "solver": None,
    }
