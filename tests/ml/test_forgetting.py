from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from ml import forgetting
from ml.certify.kantorovich import certify_expansion
from ml.data import synthetic_mixture
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting import Rung, forget, influence_step, newton_step
from ml.inference.variational import train
from ml.models.family import Expansion
from ml.models.gmm import GaussianMixture
from ml.posterior import MeanFieldGaussian
from tests.ml.conftest import Scene, saddle


def distance(one: MeanFieldGaussian, other: MeanFieldGaussian) -> float:
    return float((one.flat() - other.flat()).norm())


def conjugate(data: Tensor, prior_std: float) -> MeanFieldGaussian:
    """The exact posterior of one component."""
    precision = prior_std**-2 + len(data)
    mean = data.sum(0, keepdim=True) / precision
    return MeanFieldGaussian(mean, torch.full_like(mean, precision**-0.5))


@pytest.mark.parametrize("removed", [1, 10, 150])
def test_on_a_conjugate_model_one_influence_step_equals_retraining(removed: int) -> None:
    """One component is linear in its natural parameters, along which the step is taken."""
    family, data = GaussianMixture(1, 2, 0.8), synthetic_mixture(200, seed=0)[0]
    forgotten = torch.arange(removed)
    processed = influence_step(family, conjugate(data, 0.8), data, forgotten)
    assert distance(processed, conjugate(data[removed:], 0.8)) < 1e-13


def test_a_newton_step_on_retained_data_finds_the_conjugate_mean() -> None:
    family, data = GaussianMixture(1, 2, 0.8), synthetic_mixture(200, seed=0)[0]
    retained = data[50:]
    processed = newton_step(family, conjugate(data, 0.8), retained)
    assert torch.allclose(processed.mean, conjugate(retained, 0.8).mean, rtol=0, atol=1e-13)


def test_the_error_of_one_influence_step_falls_with_the_square_of_n() -> None:
    sizes, errors = [250, 500, 1000, 2000, 4000], []
    family = GaussianMixture(4, 2, 1.0)
    forgotten = torch.tensor([0])
    datum = torch.tensor([[0.5, 2.0]], dtype=torch.float64)  # between two classes, where the energy is not quadratic
    for n in sizes:
        data = torch.cat([datum, synthetic_mixture(n, seed=5)[0]])
        posterior = train(family, data, family.initial(data, 0), tolerance=0.0).posterior
        truth = train(family, data[1:], posterior, tolerance=0.0).posterior
        errors.append(distance(influence_step(family, posterior, data, forgotten), truth))
    x, y = torch.tensor(sizes).double().log(), torch.tensor(errors).double().log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert -2.2 < slope < -1.8


def test_forgetting_eight_hundred_of_two_thousand_equals_retraining(scene: Scene) -> None:
    forgotten = scene.of_classes(0, 1, each=400)
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    assert scene.posterior.kl(retrained) > 1
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-12)
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
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-9)
    assert outcome.posterior.kl(retrained) <= outcome.certificate.epsilon <= 1e-9


def test_a_hundred_deletions_in_a_row_add_nothing_up(scene: Scene) -> None:
    posterior, data = scene.posterior, scene.data
    for _ in range(100):
        outcome = forget(scene.family, posterior, data, torch.tensor([0, 1]), epsilon=1e-6)
        posterior, data = outcome.posterior, data[2:]
        assert outcome.certificate.epsilon <= 1e-6
    retrained = train(scene.family, data, scene.start, tolerance=0.0).posterior
    assert posterior.kl(retrained) <= outcome.certificate.epsilon


def test_a_generous_policy_stops_at_the_influence_step(scene: Scene) -> None:
    forgotten = torch.arange(20)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-2)
    assert [(rung.name, rung.steps, rung.level) for rung in outcome.rungs] == [("influence", 1, "proved")]
    expected = influence_step(scene.family, scene.posterior, scene.data, forgotten)
    assert torch.equal(outcome.posterior.flat(), expected.flat())


def test_every_rung_is_recorded_with_its_bound(scene: Scene) -> None:
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(100), epsilon=1e-10)
    influence, newton = outcome.rungs
    assert (influence.name, influence.steps, newton.name) == ("influence", 1, "newton")
    assert newton.steps >= 1
    assert influence.epsilon > 1e-10 >= newton.epsilon == outcome.certificate.epsilon
    assert 0 < influence.seconds + newton.seconds <= outcome.seconds < 60


def test_a_rung_without_a_bound_is_plain_json() -> None:
    rung = Rung("influence", 1, math.inf, "none", 0.5)
    assert json.loads(json.dumps(rung.to_dict(), allow_nan=False)) == {
        "name": "influence",
        "steps": 1,
        "epsilon": None,
        "level": "none",
        "seconds": 0.5,
    }


def test_a_policy_below_rounding_is_missed_openly(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "_MAX_NEWTON_STEPS", 3)
    outcome = forget(scene.family, scene.posterior, scene.data, torch.arange(5), epsilon=1e-300)
    assert outcome.certificate.level == "proved"
    assert 1e-300 < outcome.certificate.epsilon < 1e-15
    assert outcome.rungs[-1].steps == 3


def test_a_basin_that_is_gone_is_reported_not_certified(scene: Scene) -> None:
    """A whole class forgotten: its component has no minimum to go to nearby."""
    outcome = forget(scene.family, scene.posterior, scene.data, scene.of_classes(0, each=500), epsilon=1e-6)
    assert (outcome.certificate.level, outcome.certificate.epsilon) == ("none", math.inf)
    assert outcome.certificate.reasons
    assert outcome.rungs[-1].level == "none"


def test_progress_rises_to_one(scene: Scene) -> None:
    told: list[tuple[str, float]] = []
    forget(
        scene.family,
        scene.posterior,
        scene.data,
        torch.arange(100),
        1e-10,
        on_progress=lambda phase, fraction: told.append((phase, fraction)),
    )
    fractions = [fraction for _, fraction in told]
    assert [phase for phase, _ in told][:2] == ["influence", "newton"]
    assert told[-1] == ("done", 1.0)
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0


def test_a_step_too_long_for_the_precision_is_shortened(scene: Scene) -> None:
    processed = influence_step(scene.family, scene.posterior, scene.data, scene.of_classes(0, each=500))
    lost = 1 - (scene.posterior.std / processed.std).square()
    assert float(lost.max()) == pytest.approx(0.95)


def test_a_model_at_a_saddle_cannot_forget(scene: Scene) -> None:
    with pytest.raises(NumericalFailure, match="train it to convergence"):
        forget(scene.family, saddle(scene), scene.data, torch.arange(3), epsilon=1e-6)


def rows(*positions: int) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64)


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [
        (rows(), "at least one"),
        (rows(-1), "outside 0..1999"),
        (rows(2000), "outside 0..1999"),
        (rows(5, 6, 5), "named twice"),
        (torch.arange(2000), "delete the model"),
        (torch.arange(1997), "3 rows cannot carry 4 components"),
        (rows(1, 2).reshape(1, 2), "1-D tensor"),
        (rows(1, 2).double(), "torch.int64"),
        (torch.zeros(2000, dtype=torch.bool), "torch.int64"),
    ],
)
def test_rows_that_cannot_be_forgotten_are_invalid_input(scene: Scene, forgotten: Tensor, message: str) -> None:
    before = scene.posterior.flat().clone(), scene.data.clone()
    with pytest.raises(InvalidInput, match=message):
        forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-6)
    assert torch.equal(scene.posterior.flat(), before[0])
    assert torch.equal(scene.data, before[1])


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_a_policy_must_be_a_positive_number(scene: Scene, epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        forget(scene.family, scene.posterior, scene.data, rows(1), epsilon)


def test_data_and_posterior_are_checked_first(scene: Scene) -> None:
    broken = scene.data.clone()
    broken[7, 1] = math.nan
    with pytest.raises(InvalidInput, match="NaN"):
        forget(scene.family, scene.posterior, broken, rows(1), 1e-6)
    with pytest.raises(InvalidInput, match="this mixture needs"):
        forget(
            scene.family, MeanFieldGaussian(scene.posterior.mean.T, scene.posterior.std.T), scene.data, rows(1), 1e-6
        )


def test_nothing_that_was_passed_in_changes(scene: Scene) -> None:
    posterior, data, forgotten = scene.posterior.flat().clone(), scene.data.clone(), torch.arange(100)
    forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-12)
    assert torch.equal(scene.posterior.flat(), posterior)
    assert torch.equal(scene.data, data)
    assert torch.equal(forgotten, torch.arange(100))


def test_certificates_that_must_miss_are_not_computed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence to the Newton point is a floor of the bound: only where that is low enough is it asked for."""
    computed: list[float] = []

    def counting(*arguments: object) -> object:
        certificate = certify_expansion(*arguments)  # type: ignore[arg-type]
        computed.append(certificate.epsilon)
        return certificate

    monkeypatch.setattr(forgetting, "certify_expansion", counting)
    forgotten = scene.of_classes(0, 1, each=400)
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, epsilon=1e-12)
    influence, newton = outcome.rungs
    assert (influence.epsilon, influence.level) == (math.inf, "none")
    assert newton.steps > 1
    assert computed == [outcome.certificate.epsilon]
    assert outcome.certificate.epsilon <= 1e-12


@pytest.mark.parametrize("removed", [3, 800])
def test_a_kept_hessian_spares_a_pass_and_changes_nothing(
    scene: Scene, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = train(scene.family, scene.data, scene.posterior, tolerance=0.0)
    forgotten = torch.randperm(2000, generator=torch.Generator().manual_seed(3))[:removed]
    expected = forget(scene.family, trained.posterior, scene.data, forgotten, 1e-9)
    expanded: list[int] = []

    def counting(family: GaussianMixture, posterior: MeanFieldGaussian, data: Tensor) -> Expansion:
        expanded.append(len(data))
        return expand(family, posterior, data)

    expand = GaussianMixture.expand
    monkeypatch.setattr(GaussianMixture, "expand", counting)
    outcome = forget(scene.family, trained.posterior, scene.data, forgotten, 1e-9, hessian=trained.hessian)
    assert set(expanded) == {2000 - removed}
    assert torch.equal(outcome.posterior.flat(), expected.posterior.flat())
    assert torch.equal(outcome.hessian, expand(scene.family, outcome.posterior, scene.retained(forgotten)).hessian)


def test_a_wrong_hessian_costs_steps_not_the_certificate(scene: Scene) -> None:
    forgotten = torch.arange(40)
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    wrong = 0.5 * scene.family.expand(scene.posterior, scene.data).hessian
    outcome = forget(scene.family, scene.posterior, scene.data, forgotten, 1e-9, hessian=wrong)
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
    forget(scene.family, scene.posterior, scene.data, torch.arange(500), 1e-9)
    assert swept == []
    forget(scene.family, scene.posterior, scene.data, torch.arange(501), 1e-9)
    assert swept == [1499] * 4
