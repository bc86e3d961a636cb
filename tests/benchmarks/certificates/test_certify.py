from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.certificates import certify
from benchmarks.certificates.certify import FAMILIES, LEAST_KL, Report, Trial
from benchmarks.certificates.certify_scenes import KINDS, choose, make_scene
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.inference.variational import train
from ml.ladder.climb import Outcome
from ml.ladder.variational import forget
from ml.posteriors.mean_field import MeanFieldGaussian

TRIAL = Trial("uniform", 1, 1000, "influence", "proved", 2e-6, 2e-6, 1e-6, 1e-6, published=True)


@pytest.fixture(scope="module", params=FAMILIES)
def measured(request: pytest.FixtureRequest) -> tuple[Report, list[Trial]]:
    return certify.run(request.param, trials=20, seed=3)


def test_no_bound_is_exceeded_and_every_policy_met(measured: tuple[Report, list[Trial]]) -> None:
    report, trials = measured
    assert (report.trials, report.violations, report.published_above_policy, report.unpublished) == (20, 0, 0, 0)
    assert all(trial.kl <= trial.epsilon <= certify.EPSILON for trial in trials)
    assert all(trial.kl_reverse <= trial.epsilon_reverse for trial in trials)
    assert report.issued == {"proved": 20, "estimated": 0, "retrained": 0, "none": 0}
    assert report.without_retraining == 1.0
    assert report.ratios >= 12  # the rest is too near to the truth for one
    assert report.median_ratio_1pct is not None
    assert 1 <= report.median_ratio_1pct <= 1.5
    assert report.median_ratio_5pct is not None
    assert 1 <= report.median_ratio_5pct <= 5


def test_the_kinds_take_turns_and_repeated_ones_go_on_where_the_last_ended(
    measured: tuple[Report, list[Trial]],
) -> None:
    _, trials = measured
    assert Counter(trial.kind for trial in trials) == dict.fromkeys(KINDS, 4)
    chain = [trial for trial in trials if trial.kind == "repeated"]
    assert [after.n for after in chain[1:]] == [before.n - before.removed for before in chain[:-1]]
    for trial in trials:
        assert (0.1 <= trial.share <= 0.25) if trial.kind == "whole" else (1 <= trial.removed <= 0.05 * trial.n)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_hundred_deletions_of_every_family(family: str) -> None:
    report, _ = certify.run(family, trials=100, seed=5)
    assert (report.violations, report.published_above_policy, report.unpublished) == (0, 0, 0)
    assert report.issued["proved"] >= 95
    assert report.without_retraining >= 0.95
    assert report.median_ratio_1pct is not None
    assert report.median_ratio_5pct is not None
    assert report.median_ratio_1pct <= 1.5
    assert report.median_ratio_5pct <= 5


def test_the_same_seed_measures_the_same_and_another_something_else() -> None:
    first, again, other = (certify.run("linear-regression", 10, seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("direction", ["epsilon", "epsilon_reverse"])
def test_a_bound_that_claims_too_much_is_caught(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the bound is below nearly every truth: a benchmark that passes it measures nothing."""

    def boastful(*arguments: Any, **named: Any) -> Outcome[MeanFieldGaussian]:
        outcome = forget(*arguments, **named)
        claimed = {direction: getattr(outcome.certificate, direction) / 2}
        return replace(outcome, certificate=replace(outcome.certificate, **claimed))

    monkeypatch.setattr(certify, "forget", boastful)
    report, _ = certify.run("linear-regression", 20, seed=3)
    assert report.violations >= 10


def test_a_deletion_that_changes_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(family: Any, posterior: MeanFieldGaussian, *arguments: Any, **named: Any) -> Outcome[MeanFieldGaussian]:
        return replace(forget(family, posterior, *arguments, **named), posterior=posterior)

    monkeypatch.setattr(certify, "forget", idle)
    assert certify.run("linear-regression", 20, seed=3)[0].violations >= 15


@pytest.mark.parametrize("family", ["logistic-regression", "gaussian-mixture"])
def test_the_truth_does_not_depend_on_where_it_was_trained_from(family: str) -> None:
    """What the head of the experiment says of rounding: far below the least divergence that is divided by."""
    scene = make_scene(family, 1)
    generator = torch.Generator().manual_seed(0)
    retained = retained_rows(scene.model.data, choose("uniform", scene, scene.model, generator))
    shake = 0.3 * torch.randn(scene.model.posterior.mean.shape, generator=generator, dtype=torch.float64)
    start = scene.model.posterior
    starts = [start, MeanFieldGaussian(start.mean + shake * start.std, 1.1 * start.std)]
    truths = [train(scene.family, retained, start, tolerance=0.0).posterior for start in starts]
    assert starts[0].kl(truths[0]) > 1e-9
    assert max(truths[0].kl(truths[1]), truths[1].kl(truths[0])) < 1e-26 < 1e-5 * LEAST_KL


def test_what_is_counted() -> None:
    trials = [
        TRIAL,
        replace(TRIAL, removed=30, kl=1e-6, epsilon=8e-6),
        replace(TRIAL, removed=30, kl=0.5 * LEAST_KL, kl_reverse=0.0, epsilon=1e-19),
        replace(TRIAL, removed=200, kl=3e-6, epsilon=2e-6),
        replace(TRIAL, kl_reverse=3e-6),
        replace(TRIAL, level="retrained", rung="retrain", epsilon=0.0, epsilon_reverse=0.0),
        replace(TRIAL, level="none", epsilon=math.inf, epsilon_reverse=math.inf, published=False),
        replace(TRIAL, epsilon=2e-3, kl=1e-3),
    ]
    report = certify.summarise("some", trials, seed=4, epsilon=1e-3, seconds=1.0)
    assert report.violations == 2
    assert report.issued == {"proved": 6, "estimated": 0, "retrained": 1, "none": 1}
    assert report.rungs == {"influence": 7, "newton": 0, "reweight": 0, "temper": 0, "warm": 0, "retrain": 1}
    assert report.ratios == 5
    assert report.median_ratio == pytest.approx(2)
    assert report.p95_ratio == pytest.approx(8)
    assert report.median_ratio_1pct == pytest.approx(2)
    assert report.median_ratio_5pct == pytest.approx(8)
    assert (report.published_above_policy, report.unpublished) == (1, 1)
    assert report.without_retraining == pytest.approx(6 / 8)


def test_where_no_trial_has_a_ratio_none_is_reported() -> None:
    report = certify.summarise("some", [replace(TRIAL, kl=0.0)], seed=4, epsilon=1e-3, seconds=1.0)
    assert (report.median_ratio, report.p95_ratio, report.median_ratio_5pct) == (None, None, None)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidInput, match="choose among linear-regression"):
        certify.run("lenet5", 10, 0)
    with pytest.raises(InvalidInput, match="at least 1"):
        certify.run("linear-regression", 0, 0)
    with pytest.raises(InvalidInput, match="epsilon is 0"):
        certify.run("linear-regression", 1, 0, epsilon=0.0)
