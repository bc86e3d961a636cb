from __future__ import annotations

import math

from ml.certify.effects import Effects as MeasuredEffects
from ml.certify.function_space import FunctionSpace, PredictionShift
from ml.certify.membership import Attack, Membership, MembershipReport, WorstExample
from ml.certify.pac_bayes import PacBayes, RiskBound
from ml.certify.release import bound_advantages
from vocabulary.effects import Effects


def measured(worst: WorstExample | None) -> MeasuredEffects:
    attack = Attack(0.5, math.nan, 0.1, 0.2, 0.3)
    side = Membership(attack, None, (0.5,) * 21, (), ())
    risk = RiskBound(0.08, 0.1, 12.0, 36, 200, 0.05, 0.17)
    report = MembershipReport(side, side, worst, 4, 36, 30)
    few, many = (PredictionShift(rows, 0.0123, math.nan, 0.1, 0.0456, 1e-3, 0.987, 0.61, 0.0, 0.5) for rows in (20, 21))
    return MeasuredEffects(bound_advantages(1e-6), PacBayes(risk, risk), report, FunctionSpace(few, many, None, 64, 64))


def test_measured_effects_are_typed_without_loss() -> None:
    plain = measured(None).to_dict()
    effects = Effects.model_validate(plain)
    assert effects.to_dict() == plain
    assert effects.release[1].draws == 10
    assert effects.membership is not None
    assert effects.membership.before.forgotten is not None
    assert effects.membership.before.forgotten.error is None


def test_predictions_are_rounded_and_small_groups_show_no_scores() -> None:
    effects = Effects.model_validate(measured(None).to_dict())
    assert effects.function_space is not None
    few, many = effects.function_space.forgotten, effects.function_space.retained
    assert (few.rows, few.kl, few.kl_error, few.kl_max, few.kl_reverse) == (20, 0.012, None, 0.1, 0.046)
    assert (few.label_before, few.label_after, few.error_before, few.error_after) == (None, None, None, None)
    assert (many.label_before, many.label_after, many.error_before, many.error_after) == (0.99, 0.61, 0.0, 0.5)
    assert effects.function_space.never_seen is None


def test_the_worst_example_is_known_by_its_commitment_not_by_its_position() -> None:
    effects = Effects.model_validate(measured(WorstExample(3, 0.1, 0.2, 0.8)).to_dict())
    assert effects.membership is not None
    assert effects.membership.worst is not None
    assert effects.membership.worst.to_dict() == {"p_value_before": 0.1, "p_value": 0.2, "adjusted": 0.8}
    named = effects.membership.worst.model_copy(update={"commitment": None})
    assert named.to_dict()["commitment"] is None


def test_effects_of_earlier_statements_may_be_empty() -> None:
    assert Effects.model_validate({}).release == []
    assert "function_space" not in Effects.model_validate({}).to_dict()
