from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ml.forgetting.variational import influence_step
from ml.inference.variational import train
from ml.models.gmm import GaussianMixture
from ml.models.newton import newton_step
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene


def distance(first: MeanFieldGaussian, second: MeanFieldGaussian) -> float:
    return float((first.flat() - second.flat()).norm())


def conjugate(data: Tensor, prior_std: float) -> MeanFieldGaussian:
    """Return the exact posterior of one component."""
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


def test_a_newton_step_on_the_retained_rows_reaches_the_conjugate_mean() -> None:
    family, data = GaussianMixture(1, 2, 0.8), synthetic_mixture(200, seed=0)[0]
    retained = data[50:]
    processed = newton_step(family, family.expand(conjugate(data, 0.8), retained), retained).posterior
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


def test_a_step_too_long_for_the_precision_is_shortened(scene: Scene) -> None:
    processed = influence_step(scene.family, scene.posterior, scene.data, scene.of_classes(0, each=500))
    lost = 1 - (scene.posterior.std / processed.std).square()
    assert float(lost.max()) == pytest.approx(0.95)
