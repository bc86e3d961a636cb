from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.certificates.audit.wrong_samples import (
    RECIPES,
    SLIGHTLY_WIDE,
    audit_wrong_samples,
    judge_kind,
)


def ignore_progress(_stage: str, _fraction: float) -> None:
    pass


@pytest.mark.parametrize("kind", RECIPES)
def test_wrong_draws_have_the_shape_of_right_ones_and_are_wrong(kind: str) -> None:
    rng = np.random.default_rng(0)
    posterior = RECIPES[kind].posterior(rng)
    wrong = RECIPES[kind].draws(posterior, rng)
    assert wrong.shape == (4, 500, posterior.parameters)
    assert np.isfinite(wrong).all()
    mode, hessian = posterior.mode()
    white = (wrong - mode).reshape(-1, posterior.parameters) @ np.linalg.cholesky(hessian)
    gap = np.abs(np.cov(white.T) - np.eye(posterior.parameters)).max() + np.abs(white.mean(0)).max()
    assert (gap < 0.12) == (kind == "Laplace draws of a skewed posterior")


def test_a_shifted_set_is_refused_and_a_right_one_is_not() -> None:
    trial = judge_kind("shifted by 3 sd", np.random.default_rng(1))
    assert not trial.certified
    assert trial.epsilon == math.inf
    assert not trial.false_alarm


def test_the_divergence_of_a_slightly_wide_set_is_stated() -> None:
    trial = judge_kind(SLIGHTLY_WIDE, np.random.default_rng(2))
    assert 2 * 0.0062 < trial.divergence < 5.1 * 0.0063
    assert not trial.certified or trial.epsilon > trial.divergence


@pytest.mark.soak
def test_few_wrong_sets_are_certified() -> None:
    trials = audit_wrong_samples(4, 9, ignore_progress)
    certified = [trial.kind for trial in trials if trial.certified and trial.kind != SLIGHTLY_WIDE]
    assert len(certified) <= 2
    assert sum(trial.false_alarm for trial in trials) <= 1
