from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.certificates.audit.sequences import (
    CHECKPOINTS,
    SampleTrial,
    audit_sequences,
    build_model,
    draw_regression,
    draw_scene,
    judge_sequence,
)

TRIAL = SampleTrial("linear", 2, 10, 20, 0.1, "estimated", True, "draws", 0.01, 0.03, 0.04, 0.02, 0.02)


def ignore_progress(_stage: str, _fraction: float) -> None:
    pass


def test_an_interval_covers_or_not() -> None:
    assert TRIAL.covered
    assert not replace(TRIAL, truth=0.035).covered
    assert not replace(TRIAL, truth=0.009).covered
    assert not replace(TRIAL, truth=0.035).below_truth
    assert replace(TRIAL, truth=0.05).below_truth
    assert not replace(TRIAL, truth=0.05, level="none").below_truth


def test_the_looser_bound_is_compared_apart() -> None:
    loose = replace(TRIAL, reading="weighted draws", chi_square_bound=0.05)
    assert loose.below_chi_square_bound
    assert not loose.below_truth
    assert not replace(loose, level="none").below_chi_square_bound


def test_published_above_policy_is_a_truth_beyond_it() -> None:
    assert replace(TRIAL, truth=0.2).published_above_policy
    assert not replace(TRIAL, truth=0.2, met=False).published_above_policy
    assert not TRIAL.published_above_policy


def test_draws_are_worth_less_where_chains_repeat() -> None:
    scenes = [draw_scene(index, np.random.default_rng(index)) for index in range(6)]
    assert {scene.family for scene in scenes} == {"linear", "logistic"}
    for scene in scenes:
        assert 300 < scene.effective <= 2_000
        assert len(scene.samples.samples) == 2_000


@pytest.mark.parametrize("logistic", [False, True])
def test_the_judged_model_has_the_potential_of_the_truth(logistic: bool) -> None:
    import torch

    from ml.models.potential import Potential

    posterior = draw_regression(30, 3, logistic, np.random.default_rng(0), prior_std=2.0)
    theta = np.random.default_rng(1).normal(size=(4, 3))
    values = Potential(build_model(posterior), torch.from_numpy(posterior.rows)).values(torch.from_numpy(theta))
    gaps = values.numpy() - posterior.potential(theta)
    assert gaps == pytest.approx(gaps[0], rel=1e-12)


def test_a_sequence_is_judged_at_its_checkpoints() -> None:
    (trial,) = judge_sequence(0, np.random.default_rng(3))
    assert trial.length == 1
    trials = judge_sequence(1, np.random.default_rng(3))
    assert [trial.length for trial in trials] == [1, 10]
    assert all(trial.issued and not trial.below_truth for trial in trials)


@pytest.mark.soak
def test_intervals_of_sequences_cover() -> None:
    trials = [trial for trial in audit_sequences(18, 5, ignore_progress) if trial.issued]
    assert {trial.length for trial in trials} >= set(CHECKPOINTS)
    assert sum(trial.covered for trial in trials) >= 0.9 * len(trials)
    assert not any(trial.published_above_policy for trial in trials)
