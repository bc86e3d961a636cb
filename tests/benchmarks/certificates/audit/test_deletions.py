from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.certificates.audit import deletions as module
from benchmarks.certificates.audit.awkward_data import FAMILIES, draw_data
from benchmarks.certificates.audit.deletions import Deletion, audit_deletions, judge, train_scene
from ml.errors import NumericalFailure

PROVED = Deletion("linear-regression", "ordinary", "one", 50, 1, "proved", True, 4e-6, 4e-6, 1e-6, 1e-6, 1e-12)


def ignore_progress(_stage: str, _fraction: float) -> None:
    pass


def test_a_violation_is_a_truth_above_the_bound_beyond_its_own_accuracy() -> None:
    assert not PROVED.violated
    assert PROVED.ratio == pytest.approx(4.0)
    assert replace(PROVED, kl=4.1e-6).violated
    assert replace(PROVED, kl_reverse=4.1e-6).violated
    assert not replace(PROVED, kl=4.1e-6, accuracy=1e-4).violated
    assert not replace(PROVED, kl=4.1e-6, level="none").violated


def test_a_refusal_is_needless_where_the_truth_is_within_policy_or_nothing_was_reached() -> None:
    refused = replace(PROVED, level="none", met=False, epsilon=math.inf, epsilon_reverse=math.inf)
    assert refused.needless
    assert refused.ratio is None
    assert not replace(refused, kl=2e-3).needless
    assert not replace(refused, kl=None).needless
    assert replace(refused, kl=None, failure="a rung failed").needless
    assert not PROVED.needless


def test_thirty_deletions_and_a_sequence_hold() -> None:
    """All families and several kinds of data. A sequence belongs to the tenth model."""
    judged = audit_deletions(75, 1, ignore_progress)
    assert Counter(deletion.removal for deletion in judged)["sequence"] >= 20
    assert {deletion.family for deletion in judged} == set(FAMILIES)
    assert sum(deletion.proved for deletion in judged) >= 60
    assert not any(deletion.violated for deletion in judged)
    assert all(deletion.kl is not None for deletion in judged)


def test_a_loose_certificate_would_be_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judged bound is replaced by a quarter of itself."""
    scene = train_scene(draw_data("linear-regression", "ordinary", np.random.default_rng(0)))
    real = module.forget_rows

    def too_small(*arguments: object) -> object:
        outcome = real(*arguments)  # type: ignore[arg-type]
        certificate = replace(outcome.certificate, epsilon=outcome.certificate.epsilon / 4)
        return replace(outcome, certificate=certificate)

    assert not judge(scene, np.arange(5), "tenth")[0].violated
    monkeypatch.setattr(module, "forget_rows", too_small)
    assert judge(scene, np.arange(5), "tenth")[0].violated


def test_references_are_checked_with_fifty_digits() -> None:
    scene = train_scene(draw_data("gaussian-mixture", "tiny", np.random.default_rng(4)))
    deletion, _ = judge(scene, np.arange(1), "one", check=True)
    assert deletion.correction is not None
    assert deletion.correction <= deletion.accuracy


def test_a_rung_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise NumericalFailure("no rung")

    scene = train_scene(draw_data("linear-regression", "tiny", np.random.default_rng(0)))
    monkeypatch.setattr(module, "forget_rows", fail)
    deletion, processed = judge(scene, np.arange(1), "one")
    assert (deletion.failure, deletion.level, processed) == ("no rung", "none", None)
    assert deletion.needless


@pytest.mark.soak
def test_hundreds_of_deletions_hold() -> None:
    judged = audit_deletions(600, 7, ignore_progress)
    assert not any(deletion.violated for deletion in judged)
    assert sum(deletion.proved for deletion in judged) > 0.95 * len(judged)
    assert sum(deletion.needless for deletion in judged) < 0.02 * len(judged)
    assert all(deletion.correction <= deletion.accuracy for deletion in judged if deletion.correction is not None)
