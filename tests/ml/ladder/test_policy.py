import math

import pytest

from ml.certify import Certificate
from ml.certify.certificate import Level
from ml.errors import InvalidInput
from ml.ladder.policy import Policy
from vocabulary.references import Reference


def certificate(epsilon: float, level: Level, reference: Reference | None = None) -> Certificate:
    return Certificate(epsilon, epsilon, level, "", "", 1, (), None, (), reference_kind=reference)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_must_be_a_positive_number(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        Policy(epsilon)


@pytest.mark.parametrize("rungs", [(), ("newton", "influence"), ("influence", "influence"), ("magic",)])
def test_rungs_are_some_of_ours_in_order(rungs: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="influence, newton, reweight, temper, warm, retrain"):
        Policy(1.0, rungs=rungs)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_is_positive(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="budget"):
        Policy(1.0, seconds=seconds)


def test_a_level_that_no_rung_can_reach_is_refused() -> None:
    with pytest.raises(InvalidInput, match="allow it"):
        Policy(1.0, level="retrained", rungs=("influence",))
    with pytest.raises(InvalidInput, match="level"):
        Policy(1.0, level="none")


def test_it_is_met_by_a_bound_within_it_at_the_level_required() -> None:
    policy = Policy(1e-3, level="estimated")
    assert policy.met_by(certificate(1e-3, "estimated"))
    assert policy.met_by(certificate(1e-3, "proved"))
    assert policy.met_by(certificate(0.0, "retrained"))
    assert not policy.met_by(certificate(1.1e-3, "proved"))
    assert not policy.met_by(certificate(1e-4, "none"))
    assert not policy.met_by(certificate(math.nan, "proved"))
    assert not Policy(1e-3).met_by(certificate(1e-4, "estimated"))


def test_a_reference_is_one_of_ours() -> None:
    with pytest.raises(InvalidInput, match="stored draws, posterior"):
        Policy(1.0, reference="prior")  # type: ignore[arg-type]


def test_a_bound_on_stored_draws_meets_only_a_policy_that_asks_for_it() -> None:
    posterior, stored = (certificate(0.01, "estimated", kind) for kind in ("posterior", "stored draws"))
    strict = Policy(1.0, level="estimated")
    assert strict.met_by(posterior)
    assert not strict.met_by(stored)
    weak = Policy(1.0, level="estimated", reference="stored draws")
    assert weak.met_by(posterior)
    assert weak.met_by(stored)
    assert not weak.met_by(certificate(1.1, "estimated", "stored draws"))
