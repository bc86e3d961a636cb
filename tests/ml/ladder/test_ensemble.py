from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

import ml
from ml.inference.members import train_ensemble
from ml.ladder.climb import Step
from ml.ladder.ensemble import OnFraction, forget, retrain_member
from tests.ml.ensembles import RECIPE, lone_ensemble, small_ensemble
from tests.ml.networks import TINY

POLICY = ml.Policy(1e-6, "retrained")


def test_what_is_left_equals_an_ensemble_that_never_saw_the_rows_bit_for_bit() -> None:
    before, data = small_ensemble()
    forgotten = torch.tensor([0, 1, 2, 30, 31, 32])
    outcome = forget(TINY, before, data, forgotten, POLICY)
    keep = torch.ones(len(data), dtype=torch.bool)
    keep[forgotten] = False
    never_saw = train_ensemble(TINY, data[keep], before.shard[keep], RECIPE, seed=5)
    assert outcome.posterior.to_bytes() == never_saw.to_bytes()
    assert outcome.policy_met
    assert (outcome.certificate.level, outcome.certificate.epsilon) == ("retrained", 0.0)


def test_members_that_saw_none_of_the_rows_stay_and_the_others_change() -> None:
    before, data = small_ensemble()
    reader = int(before.shard[0])
    after = forget(TINY, before, data, torch.tensor([0, 1, 2]), POLICY).posterior
    changed = [k for k in range(3) if not torch.equal(before.members[k], after.members[k])]
    assert changed == [reader]


def test_a_member_left_without_rows_is_dropped() -> None:
    before, data = lone_ensemble()
    after = forget(TINY, before, data, torch.tensor([0, 1, 2]), POLICY).posterior
    assert torch.equal(after.members, before.members[[0, 2]])
    assert torch.bincount(after.shard).tolist() == [15, 12]


def test_members_can_be_trained_elsewhere() -> None:
    before, data = small_ensemble()
    forgotten = torch.arange(90)[::3]

    def train(members: Sequence[int], report: OnFraction) -> Mapping[int, Tensor | None]:
        return {k: retrain_member(TINY, before, data, forgotten, k) for k in reversed(members)}

    elsewhere = ml.forget(TINY, before, data, forgotten, POLICY, train_members=train).posterior
    assert elsewhere.to_bytes() == ml.forget(TINY, before, data, forgotten, POLICY).posterior.to_bytes()


def test_progress_rises_to_the_end_of_the_last_member() -> None:
    before, data = small_ensemble()
    fractions, steps = list[float](), list[Step]()
    forgotten = torch.arange(90)[::3]
    forget(TINY, before, data, forgotten, POLICY, lambda _, fraction: fractions.append(fraction), steps.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert [(step.rung, step.step, step.residual) for step in steps] == [("retrain", 3, 0.0)]


def test_a_policy_without_retraining_is_refused() -> None:
    before, data = small_ensemble()
    with pytest.raises(ml.NumericalFailure, match="retrain"):
        forget(TINY, before, data, torch.tensor([0]), ml.Policy(1.0, "estimated", ("influence",)))
