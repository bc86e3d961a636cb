from __future__ import annotations

import math

import pytest
import torch

from ml.errors import InvalidInput, NumericalFailure
from ml.inference import variational
from ml.inference.variational import descend, train
from ml.models.gmm import GaussianMixture
from ml.models.logistic import LogisticRegression
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene


def test_one_component_reaches_its_closed_form_optimum() -> None:
    data = synthetic_mixture(300, seed=4)[0]
    family = GaussianMixture(1, 2, 0.7)
    trained = train(family, data, family.initial(data, 0), tolerance=0.0)
    precision = 0.7**-2 + 300
    assert torch.allclose(trained.posterior.mean, data.sum(0, keepdim=True) / precision, rtol=0, atol=1e-14)
    assert torch.allclose(
        trained.posterior.std, torch.full((1, 2), precision**-0.5, dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_training_ends_at_a_minimum_near_the_classes(scene: Scene) -> None:
    trained = train(scene.family, scene.data, scene.start)
    at = scene.family.expand(trained.posterior, scene.data)
    assert trained.gradient_norm == float(at.gradient.norm())
    assert trained.gradient_norm < 1e-6
    assert torch.equal(trained.hessian, at.hessian)
    assert float(torch.linalg.eigvalsh(at.hessian)[0]) > 100
    classes = torch.stack([scene.data[scene.labels == label].mean(0) for label in range(4)])
    assert float(torch.cdist(classes, trained.posterior.mean).amin(1).max()) < 0.15


def test_every_seed_reaches_the_same_minimum(scene: Scene) -> None:
    energies = []
    for seed in range(8):
        trained = train(scene.family, scene.data, scene.family.initial(scene.data, seed))
        energies.append(scene.family.expand(trained.posterior, scene.data).energy)
    assert max(energies) - min(energies) < 1e-7


def test_tolerance_zero_trains_to_rounding_accuracy(scene: Scene) -> None:
    exact = train(scene.family, scene.data, scene.start, tolerance=0.0)
    loose = train(scene.family, scene.data, scene.start, tolerance=1e-3)
    assert exact.gradient_norm < 1e-10
    assert loose.iterations < exact.iterations
    assert float((loose.posterior.flat() - exact.posterior.flat()).norm()) < 1e-3


def test_every_iteration_is_reported(scene: Scene) -> None:
    steps: list[tuple[int, float]] = []
    trained = train(scene.family, scene.data, scene.start, on_step=lambda i, length: steps.append((i, length)))
    assert [iteration for iteration, _ in steps] == list(range(1, trained.iterations + 1))
    assert steps[-1][1] <= 1e-10 < steps[0][1]


def test_sweeps_continue_where_newton_cannot_start(scene: Scene) -> None:
    """From one forgotten class the Hessian is indefinite for many sweeps; training must still find the minimum."""
    retained = scene.data[scene.labels != 0]
    before = scene.family.expand(scene.posterior, retained)
    assert float(torch.linalg.eigvalsh(before.hessian)[0]) < 0
    trained = train(scene.family, retained, scene.posterior)
    assert float(torch.linalg.eigvalsh(scene.family.expand(trained.posterior, retained).hessian)[0]) > 0
    assert trained.gradient_norm < 1e-6


def test_a_start_that_leads_to_a_saddle_is_a_numerical_failure(scene: Scene) -> None:
    mean, std = scene.start.mean.clone(), scene.start.std.clone()
    mean[1], std[1] = mean[0], std[0]
    with pytest.raises(NumericalFailure, match="another seed"):
        train(scene.family, scene.data, MeanFieldGaussian(mean, std))


@pytest.mark.parametrize(
    ("limit", "message"),
    [("_MAX_SWEEPS", "did not converge in 1 sweeps"), ("_MAX_NEWTON_STEPS", "Newton's method did not converge in 1")],
)
def test_training_that_does_not_converge_is_a_numerical_failure(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    monkeypatch.setattr(variational, limit, 1)
    monkeypatch.setattr(variational, "_HANDOVER", variational._LAST_HANDOVER if limit == "_MAX_SWEEPS" else 1e-2)
    monkeypatch.setattr(variational, "_LAST_HANDOVER", 1.0)
    with pytest.raises(NumericalFailure, match=message):
        train(scene.family, scene.data, scene.start, tolerance=0.0)


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_must_be_a_number(scene: Scene, tolerance: float) -> None:
    with pytest.raises(InvalidInput, match="tolerance"):
        train(scene.family, scene.data, scene.start, tolerance=tolerance)


def test_data_and_start_are_checked_first(scene: Scene) -> None:
    with pytest.raises(InvalidInput, match="columns"):
        train(scene.family, scene.data[:, :1], scene.start)
    with pytest.raises(InvalidInput, match="this mixture needs"):
        train(scene.family, scene.data, MeanFieldGaussian(scene.start.mean[:3], scene.start.std[:3]))


def test_descending_ends_where_training_does(scene: Scene) -> None:
    trained, descended = train(scene.family, scene.data, scene.start), descend(scene.family, scene.data, scene.start)
    assert descended.iterations == trained.iterations
    assert torch.equal(descended.posterior.mean, trained.posterior.mean)


def test_rows_that_training_fails_on_are_descended_as_far_as_possible() -> None:
    """All rows are equal: the components end on top of each other, where the Hessian is singular."""
    family, data = GaussianMixture(2, 2, 1.0), torch.full((10, 2), 1e6, dtype=torch.float64)
    start = family.initial(data, seed=0)
    with pytest.raises(NumericalFailure):
        train(family, data, start)
    descended = descend(family, data, start)
    assert descended.iterations > 0
    assert family.expand(descended.posterior, data).energy <= family.expand(start, data).energy


def test_wrong_input_is_not_descended_on(scene: Scene) -> None:
    with pytest.raises(InvalidInput, match="pass rows of 2 columns"):
        descend(scene.family, scene.data[:, :1], scene.start)


def test_a_convex_family_is_swept_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data = LogisticRegression(1, prior_std=1.0), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    monkeypatch.setattr(variational, "_distance", lambda *_: math.inf)
    with pytest.raises(NumericalFailure, match="did not converge in 500 sweeps"):
        train(family, data, family.initial(data, seed=0))
