"""Forgetting that was skipped or done wrongly must not be certified within a policy that the honest step meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify import kantorovich
from ml.certify.kantorovich import certify, certify_expansion
from ml.certify.stored_draws import TAKEN_AS_GIVEN
from ml.forgetting.variational import influence_step
from ml.ladder import network_samples
from ml.ladder import variational as ladder
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models.family import Family
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from ml.solvers import Solution, solve
from tests.ml.conftest import Scene, saddle
from tests.ml.network_draws import NETWORK, NOT_POSTERIOR, WORTHLESS, rows
from vocabulary.references import REFERENCES, Reference

POLICY = Policy(1e-4, rungs=("influence",))
FORGOTTEN = torch.arange(100)
Step = Callable[[Family, MeanFieldGaussian, Tensor, Tensor, Tensor | None], MeanFieldGaussian]


def skipped(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None
) -> MeanFieldGaussian:
    return posterior


def backwards(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None
) -> MeanFieldGaussian:
    honest = influence_step(family, posterior, data, forgotten, hessian)
    return posterior.with_flat(2 * posterior.flat() - honest.flat())


def for_half_the_rows(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None
) -> MeanFieldGaussian:
    return influence_step(family, posterior, data, forgotten[: len(forgotten) // 2], hessian)


def with_wrong_hessian(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, forgotten: Tensor, hessian: Tensor | None
) -> MeanFieldGaussian:
    wrong = 2 * family.expand(posterior, data).hessian
    return influence_step(family, posterior, data, forgotten, wrong)


def test_the_honest_step_meets_the_policy(scene: Scene) -> None:
    outcome = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, POLICY)
    assert (outcome.certificate.level, outcome.policy_met) == ("proved", True)


@pytest.mark.parametrize("step", [skipped, backwards, for_half_the_rows, with_wrong_hessian])
def test_a_wrong_step_misses_the_policy(scene: Scene, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "influence_step", step)
    outcome = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, POLICY)
    assert not outcome.policy_met
    assert outcome.certificate.epsilon > POLICY.epsilon


@pytest.mark.parametrize("step", [skipped, backwards, for_half_the_rows, with_wrong_hessian])
def test_the_next_rung_corrects_a_wrong_step(scene: Scene, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "influence_step", step)
    outcome = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, Policy(1e-9))
    monkeypatch.undo()
    honest = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, Policy(1e-15))
    assert outcome.policy_met
    assert outcome.posterior.kl(honest.posterior) <= 1e-9


def test_a_solver_that_misreports_its_residual_is_not_trusted(scene: Scene) -> None:
    """It returns a zero step and a zero residual: if trusted, the unchanged model would be proved."""
    retained = scene.retained(FORGOTTEN)
    at = scene.family.expand(scene.posterior, retained)
    honest = certify_expansion(scene.family, at, retained)
    misreported = Solution(torch.zeros_like(at.gradient), 0.0, 1, "cholesky", converged=True)
    certificate = certify_expansion(scene.family, at, retained, misreported)
    assert honest.epsilon > POLICY.epsilon
    assert certificate.epsilon >= honest.epsilon


@pytest.mark.parametrize("factor", [0.9, 1.1, -1.0])
def test_a_corrupt_solver_misses_the_policy_and_keeps_the_bound_valid(
    scene: Scene, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(matrix: Tensor, vector: Tensor) -> Solution:
        solution = solve(matrix, vector)
        return replace(solution, x=factor * solution.x, residual=0.0, converged=True)

    for module in (ladder, kantorovich):
        monkeypatch.setattr(module, "solve", corrupt)
    monkeypatch.setattr("ml.forgetting.variational.solve", corrupt)
    outcome = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, POLICY)
    monkeypatch.undo()
    truth = forget(scene.family, scene.posterior, scene.data, FORGOTTEN, Policy(1e-15)).posterior
    assert outcome.posterior.kl(truth) <= outcome.certificate.epsilon
    assert not outcome.policy_met


def test_cholesky_detects_a_hidden_negative_eigenvalue(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: torch.ones_like(matrix.diagonal()))
    certificate = certify(scene.family, saddle(scene), scene.data)
    assert certificate.level == "none"
    assert next(a.name for a in certificate.assumptions if not a.holds) == "curvature"


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("sample_set", WORTHLESS.values(), ids=WORTHLESS)
def test_worthless_draws_of_a_network_are_refused_whatever_the_reference(
    sample_set: Callable[[], SampleSet], reference: Reference
) -> None:
    policy = Policy(10.0, level="estimated", rungs=("reweight",), reference=reference)
    outcome = network_samples.forget(NETWORK, sample_set(), rows(), torch.arange(2), policy)
    assert (outcome.certificate.level, outcome.policy_met) == ("none", False)


@pytest.mark.parametrize("sample_set", NOT_POSTERIOR.values(), ids=NOT_POSTERIOR)
def test_draws_of_another_law_meet_no_policy_that_asks_for_the_posterior(sample_set: Callable[[], SampleSet]) -> None:
    policy = Policy(10.0, level="estimated", rungs=("reweight",))
    outcome = network_samples.forget(NETWORK, sample_set(), rows(), torch.arange(2), policy)
    assert (outcome.certificate.level, outcome.policy_met) == ("none", False)
    weaker = replace(policy, reference="stored draws")
    certificate = network_samples.forget(NETWORK, sample_set(), rows(), torch.arange(2), weaker).certificate
    assert certificate.reference_kind == "stored draws"
    assert TAKEN_AS_GIVEN in certificate.not_proved
