from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.certify.certificate import FreshStarts
from ml.certify.kantorovich import certify_expansion
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.variational import influence_step
from ml.inference.variational import train
from ml.ladder import variational
from ml.ladder.climb import Step
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models.family import Expansion
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene, saddle


def rows(*positions: int) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64)


def test_forgetting_eight_hundred_of_two_thousand_equals_retraining(scene: Scene) -> None:
    forgotten = scene.of_classes(0, 1, each=400)
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    assert scene.posterior.kl(retrained) > 1
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-12))
    assert outcome.certificate.level == "proved"
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-12
    assert outcome.posterior.kl(retrained) <= 4e-13
    assert outcome.certificate.n_retained == 1200
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton"]
    assert outcome.rungs[1].steps <= 4


@pytest.mark.parametrize("removed", [1, 3, 10, 30, 80])
def test_small_groups_are_forgotten_within_their_policy(scene: Scene, removed: int) -> None:
    forgotten = torch.randperm(2000, generator=torch.Generator().manual_seed(removed))[:removed]
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-9))
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-9


def test_errors_of_a_hundred_deletions_do_not_add_up(scene: Scene) -> None:
    posterior, data = scene.posterior, scene.data
    for _ in range(100):
        outcome = forget(scene.family, posterior, data, torch.tensor([0, 1]), Policy(1e-6))
        posterior, data = outcome.posterior, data[2:]
        assert outcome.certificate.epsilon <= 1e-6
    retrained = train(scene.family, data, scene.start, tolerance=0.0).posterior
    assert posterior.kl(retrained) <= outcome.certificate.epsilon


def test_a_certificate_that_meets_the_policy_says_what_is_known_of_its_reference(scene: Scene) -> None:
    """The best minimum of the paper's mixture: fresh starts end in it, too, or above."""
    certificate = forget(scene.family, scene.posterior, scene.data, torch.arange(20), Policy(1e-6)).certificate
    assert certificate.elbo_distance == 0
    assert certificate.fresh_starts == FreshStarts(tried=4, lower=0, lowest=0.0, rows=1000)
    assert any("None of 4 fresh starts" in sentence for sentence in certificate.not_proved)


def test_a_certificate_that_misses_the_policy_has_no_reference_to_examine(scene: Scene) -> None:
    policy = Policy(1e-12, rungs=("influence",))
    certificate = forget(scene.family, scene.posterior, scene.data, torch.arange(20), policy).certificate
    assert (certificate.elbo_distance, certificate.fresh_starts) == (None, None)


def test_a_retrained_posterior_is_its_own_reference(scene: Scene) -> None:
    policy = Policy(1e-6, level="retrained", rungs=("retrain",))
    certificate = forget(scene.family, scene.posterior, scene.data, torch.arange(20), policy).certificate
    assert (certificate.level, certificate.elbo_distance, certificate.fresh_starts) == ("retrained", 0, None)


def test_a_generous_policy_stops_at_the_influence_step(scene: Scene) -> None:
    forgotten = torch.arange(20)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-2))
    assert [(rung.name, rung.steps, rung.level) for rung in outcome.rungs] == [("influence", 1, "proved")]
    expected = influence_step(scene.family, scene.posterior, scene.data, forgotten)
    assert torch.equal(outcome.posterior.flat(), expected.flat())


def test_every_rung_is_recorded_with_its_bound(scene: Scene) -> None:
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(100), Policy(1e-10))
    influence, newton = outcome.rungs
    assert (influence.name, influence.steps, newton.name) == ("influence", 1, "newton")
    assert newton.steps >= 1
    assert influence.epsilon > 1e-10 >= newton.epsilon == outcome.certificate.epsilon
    assert 0 < influence.seconds + newton.seconds <= outcome.seconds < 60


def test_each_step_reports_its_residual(scene: Scene) -> None:
    steps: list[Step] = []
    policy = Policy(1e-12, "retrained", rungs=("retrain",))
    forgotten = scene.of_classes(0, 1, each=400)
    refined = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-12), on_step=steps.append)
    assert [(step.rung, step.step) for step in steps[:3]] == [("influence", 1), ("newton", 1), ("newton", 2)]
    assert len(steps) == sum(rung.steps for rung in refined.rungs)
    residuals = [step.residual for step in steps]
    assert residuals == sorted(residuals, reverse=True)
    at = scene.family.expand(refined.posterior, scene.retained(forgotten))
    assert residuals[-1] == float(at.gradient.norm()) < 1e-6 * residuals[0]
    assert 0 < steps[0].seconds < steps[-1].seconds <= refined.seconds
    assert {rung.solver for rung in refined.rungs} == {"cholesky"}
    steps.clear()
    retrained = forget(scene.family, scene.posterior, scene.data, torch.arange(5), policy, on_step=steps.append)
    assert [(step.rung, step.step) for step in steps] == [("retrain", retrained.rungs[0].steps)]
    assert retrained.rungs[0].solver is None


def test_progress_rises_to_one(scene: Scene) -> None:
    progress: list[tuple[str, float]] = []
    forget(
        scene.family,
        scene.posterior,
        scene.data,
        torch.arange(100),
        Policy(1e-10),
        on_progress=lambda phase, fraction: progress.append((phase, fraction)),
    )
    fractions = [fraction for _, fraction in progress]
    assert [phase for phase, _ in progress][:2] == ["influence", "newton"]
    assert progress[-1] == ("done", 1.0)
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [
        (rows(), "at least one"),
        (rows(-1), "outside 0..1999"),
        (rows(2000), "outside 0..1999"),
        (rows(5, 6, 5), "named twice"),
        (torch.arange(2000), "delete the model"),
        (torch.arange(1997), "3 rows are too few for 4 components"),
        (rows(1, 2).reshape(1, 2), "1-D tensor"),
        (rows(1, 2).double(), "torch.int64"),
        (torch.zeros(2000, dtype=torch.bool), "torch.int64"),
    ],
)
def test_rows_that_cannot_be_forgotten_are_invalid_input(scene: Scene, forgotten: Tensor, message: str) -> None:
    before = scene.posterior.flat().clone(), scene.data.clone()
    with pytest.raises(InvalidInput, match=message):
        forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-6))
    assert torch.equal(scene.posterior.flat(), before[0])
    assert torch.equal(scene.data, before[1])


def test_data_and_posterior_are_checked_first(scene: Scene) -> None:
    broken = scene.data.clone()
    broken[7, 1] = math.nan
    with pytest.raises(InvalidInput, match="NaN"):
        forget(scene.family, scene.posterior, broken, rows(1), Policy(1e-6))
    with pytest.raises(InvalidInput, match="this mixture needs"):
        forget(
            scene.family,
            MeanFieldGaussian(scene.posterior.mean.T, scene.posterior.std.T),
            scene.data,
            rows(1),
            Policy(1e-6),
        )


def test_arguments_do_not_change(scene: Scene) -> None:
    posterior, data, forgotten = scene.posterior.flat().clone(), scene.data.clone(), torch.arange(100)
    forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-12))
    assert torch.equal(scene.posterior.flat(), posterior)
    assert torch.equal(scene.data, data)
    assert torch.equal(forgotten, torch.arange(100))


def test_certificates_that_must_miss_the_policy_are_not_computed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence to the Newton point is a lower bound of the certificate: a larger one rules it out."""
    computed: list[float] = []

    def counting(*arguments: object) -> object:
        certificate = certify_expansion(*arguments)  # type: ignore[arg-type]
        computed.append(certificate.epsilon)
        return certificate

    monkeypatch.setattr(variational, "certify_expansion", counting)
    forgotten = scene.of_classes(0, 1, each=400)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-12))
    influence, newton = outcome.rungs
    assert (influence.epsilon, influence.level) == (math.inf, "none")
    assert newton.steps > 1
    assert computed == [outcome.certificate.epsilon]
    assert outcome.certificate.epsilon <= 1e-12


@pytest.mark.parametrize("removed", [3, 800])
def test_a_given_hessian_saves_a_pass_and_changes_nothing(
    scene: Scene, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = train(scene.family, scene.data, scene.posterior, tolerance=0.0)
    forgotten = torch.randperm(2000, generator=torch.Generator().manual_seed(3))[:removed]
    expected = forget(scene.family, trained.posterior, scene.data, forgotten, Policy(1e-9))
    expanded: list[int] = []

    def counting(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        expanded.append(len(data))
        return expand(family, posterior, data)

    expand = GaussianMixture.expand
    monkeypatch.setattr(GaussianMixture, "expand", counting)
    outcome = forget(
        scene.family,
        trained.posterior,
        scene.data,
        forgotten,
        Policy(1e-9),
        hessian=trained.hessian,
        examine_reference=False,
    )
    assert set(expanded) == {2000 - removed}
    assert torch.equal(outcome.posterior.flat(), expected.posterior.flat())
    assert torch.equal(outcome.hessian, expand(scene.family, outcome.posterior, scene.retained(forgotten)).hessian)


def test_a_wrong_hessian_costs_steps_not_the_certificate(scene: Scene) -> None:
    forgotten = torch.arange(40)
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    wrong = 0.5 * scene.family.expand(scene.posterior, scene.data).hessian
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-9), hessian=wrong)
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-9
    assert outcome.rungs[-1].steps > 1


def test_a_large_group_is_swept_before_newton_and_a_small_one_is_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []

    def counting(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> MeanFieldGaussian:
        swept.append(len(data))
        return sweep(family, posterior, data)

    sweep = GaussianMixture.sweep
    monkeypatch.setattr(GaussianMixture, "sweep", counting)
    forget(scene.family, scene.posterior, scene.data, torch.arange(500), Policy(1e-9), examine_reference=False)
    assert swept == []
    forget(scene.family, scene.posterior, scene.data, torch.arange(501), Policy(1e-9), examine_reference=False)
    assert swept == [1499] * 4


def test_a_policy_below_rounding_is_reported_as_missed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variational, "_MAX_NEWTON_STEPS", 3)
    outcome = forget(
        scene.family, scene.posterior, scene.data, torch.arange(5), Policy(1e-300, rungs=("influence", "newton"))
    )
    assert not outcome.policy_met
    assert outcome.certificate.level == "proved"
    assert 1e-300 < outcome.certificate.epsilon < 1e-15
    assert outcome.rungs[-1].steps == 3


def test_a_vanished_basin_is_reported_and_not_certified(scene: Scene) -> None:
    """A whole class is forgotten: there is no minimum near its component."""
    policy = Policy(1e-6, rungs=("influence", "newton"))
    outcome = forget(scene.family, scene.posterior, scene.data, scene.of_classes(0, each=500), policy)
    assert (outcome.certificate.level, outcome.certificate.epsilon, outcome.policy_met) == ("none", math.inf, False)
    assert outcome.certificate.reasons
    assert [rung.level for rung in outcome.rungs] == ["none", "none"]


def test_a_warm_restart_finds_another_basin(scene: Scene) -> None:
    forgotten = scene.of_classes(0, each=500)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-6))
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton", "warm"]
    assert (outcome.certificate.level, outcome.policy_met) == ("proved", True)
    truth = train(scene.family, scene.retained(forgotten), scene.posterior, tolerance=0.0).posterior
    assert outcome.posterior.kl(truth) <= outcome.certificate.epsilon <= 1e-6


def test_the_last_rung_is_a_model_that_never_saw_the_rows(scene: Scene) -> None:
    forgotten = torch.arange(100)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, Policy(1e-300))
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton", "warm", "retrain"]
    assert (outcome.certificate.level, outcome.certificate.epsilon, outcome.policy_met) == ("retrained", 0.0, True)
    retained = scene.retained(forgotten)
    alone = train(scene.family, retained, scene.family.initial(retained, seed=0)).posterior
    assert torch.equal(outcome.posterior.flat(), alone.flat())


def test_a_policy_that_requires_retraining_tries_nothing_else(scene: Scene) -> None:
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(3), Policy(1e-3, level="retrained"))
    assert [rung.name for rung in outcome.rungs] == ["retrain"]
    assert outcome.policy_met


def test_a_spent_budget_ends_the_climb(scene: Scene) -> None:
    policy = Policy(1e-300, seconds=1e-9)
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(100), policy)
    assert [rung.name for rung in outcome.rungs] == ["influence"]
    assert not outcome.policy_met
    assert outcome.certificate.level == "proved"


def test_without_an_influence_step_newton_starts_at_the_trained_posterior(scene: Scene) -> None:
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(40), Policy(1e-9, rungs=("newton",)))
    assert [rung.name for rung in outcome.rungs] == ["newton"]
    assert outcome.policy_met


def test_a_rung_that_fails_is_recorded_and_the_next_one_tried(scene: Scene) -> None:
    """At a saddle there is neither an influence step nor a Newton step, and a warm restart stays on it."""
    outcome = forget(scene.family, saddle(scene), scene.data, torch.arange(3), Policy(1e-6))
    influence, newton, warm, retrained = outcome.rungs
    assert "train it to convergence" in str(influence.failure)
    assert (newton.level, newton.failure, warm.level) == ("none", None, "none")
    assert warm.failure is not None
    assert (retrained.name, retrained.level, outcome.policy_met) == ("retrain", "retrained", True)


def test_a_model_at_a_saddle_cannot_forget_by_influence(scene: Scene) -> None:
    with pytest.raises(NumericalFailure, match=r"influence: .*train it to convergence"):
        forget(scene.family, saddle(scene), scene.data, torch.arange(3), Policy(1e-6, rungs=("influence",)))


@pytest.mark.slow
def test_deletions_in_sequence_equal_deletions_at_once(scene: Scene) -> None:
    """A thousand deletions: errors do not add up, since each is certified on the rows retained then."""
    posterior, data, order = (
        scene.posterior,
        scene.data,
        torch.randperm(2000, generator=torch.Generator().manual_seed(8)),
    )
    removed = torch.zeros(2000, dtype=torch.bool)
    for position in order[:1000]:
        at = int((~removed[:position]).sum())
        outcome = forget(scene.family, posterior, data, torch.tensor([at]), Policy(1e-6), examine_reference=False)
        removed[position] = True
        posterior, data = outcome.posterior, scene.data[~removed]
        assert outcome.policy_met
    at_once = forget(scene.family, scene.posterior, scene.data, order[:1000], Policy(1e-6))
    truth = train(scene.family, data, posterior, tolerance=0.0).posterior
    for result in (outcome, at_once):
        assert result.posterior.kl(truth) <= result.certificate.epsilon <= 1e-6


def test_rows_without_a_minimum_in_float64_are_forgotten_by_retraining() -> None:
    family = LinearRegression(2, noise_std=1.0, prior_std=1.0)
    data = torch.full((20, 3), 1e12, dtype=torch.float64)
    posterior = family.initial(data, seed=0)
    outcome = forget(family, posterior, data, torch.arange(2), Policy(1e-3))
    assert outcome.policy_met
    assert (outcome.certificate.level, outcome.certificate.epsilon) == ("retrained", 0.0)
    assert all(math.isfinite(value) for value in outcome.posterior.flat().tolist())


def test_a_step_that_leaves_no_width_and_no_mean_says_nothing_about_the_bound() -> None:
    """Rows of zeros and far too wide a posterior: 0/0 in the lower bound."""
    family = LinearRegression(dimensions=2, prior_std=1.0, noise_std=1.0)
    posterior = MeanFieldGaussian(torch.zeros(2).double(), torch.full((2,), 1e12).double())
    outcome = forget(family, posterior, torch.zeros(12, 3).double(), rows(5), Policy(1e-6))
    assert outcome.policy_met
    assert all(math.isfinite(rung.at_least) for rung in outcome.rungs)
