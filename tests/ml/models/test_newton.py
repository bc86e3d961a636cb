from __future__ import annotations

import pytest
import torch

from ml.errors import NumericalFailure
from ml.models.family import Expansion, Rounding
from ml.models.gmm import GaussianMixture
from ml.models.newton import newton_step
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene, saddle


def full(value: float) -> torch.Tensor:
    return torch.full((1, 2), value, dtype=torch.float64)


def test_one_step_reaches_the_mean_of_a_conjugate_model() -> None:
    """One component: the energy is quadratic in the mean, whose optimum is Σx / (1/σ² + n)."""
    family, data = GaussianMixture(1, 2, 2.0), synthetic_mixture(200, seed=0)[0]
    optimum = data.sum(0, keepdim=True) / (0.25 + 200)
    std = (0.25 + 200) ** -0.5
    after = newton_step(family, family.expand(MeanFieldGaussian(full(7.0), full(std)), data), data)
    assert torch.allclose(after.posterior.mean, optimum, rtol=0, atol=1e-13)
    assert torch.allclose(after.posterior.std, full(std), rtol=0, atol=1e-15)


@pytest.mark.parametrize("std", [1e-4, 0.03, 5.0])
def test_std_stays_positive_and_the_energy_falls(std: float) -> None:
    family, data = GaussianMixture(1, 2, 2.0), synthetic_mixture(200, seed=0)[0]
    at = family.expand(MeanFieldGaussian(full(0.0), full(std)), data)
    after = newton_step(family, at, data)
    assert float(after.posterior.std.min()) >= std / 10 * (1 - 1e-12)
    assert after.energy < at.energy


def test_errors_square_from_step_to_step(scene: Scene) -> None:
    nudge = 3e-4 * torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = scene.family.expand(scene.posterior.with_flat(scene.posterior.flat() + nudge), scene.data)
    distances = []
    for _ in range(3):
        distances.append(float((at.posterior.flat() - scene.posterior.flat()).norm()))
        at = newton_step(scene.family, at, scene.data)
    assert distances[1] < 100 * distances[0] ** 2
    assert distances[2] < 100 * distances[1] ** 2 + 1e-14


def test_the_step_is_halved_until_the_energy_falls() -> None:
    """F = √(1 + λ²) with its own curvature: the full Newton step from λ = 2 lands at -8, where F is larger."""
    positions: list[float] = []

    class Hyperbola:
        def expand(self, posterior: MeanFieldGaussian, _data: torch.Tensor) -> Expansion:
            x = float(posterior.mean)
            positions.append(x)
            root = (1 + x * x) ** 0.5
            gradient = torch.tensor([x / root, 0.0], dtype=torch.float64)
            hessian = torch.diag(torch.tensor([root**-3, 1.0], dtype=torch.float64))
            return Expansion(posterior, root, gradient, hessian, Rounding(0.0, 0.0))

    family = Hyperbola()
    start = MeanFieldGaussian(torch.tensor([2.0], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    after = newton_step(family, family.expand(start, start.mean), start.mean)  # type: ignore[arg-type]
    assert positions == pytest.approx([2.0, -8.0, -3.0, -0.5])
    assert after.energy == pytest.approx(1.25**0.5)


def test_a_direction_that_never_lowers_the_energy_is_a_numerical_failure(scene: Scene) -> None:
    at = scene.family.expand(scene.start, scene.data)
    wrong = Expansion(at.posterior, at.energy, -at.gradient, torch.eye(16, dtype=torch.float64), at.rounding)
    with pytest.raises(NumericalFailure, match="retrain"):
        newton_step(scene.family, wrong, scene.data)


def test_a_saddle_is_a_numerical_failure(scene: Scene) -> None:
    with pytest.raises(NumericalFailure, match="not positive definite"):
        newton_step(scene.family, scene.family.expand(saddle(scene), scene.data), scene.data)
