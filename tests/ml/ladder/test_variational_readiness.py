from __future__ import annotations

import math

import pytest
import torch

from ml.ladder.variational_readiness import check_variational
from ml.models.linear import LinearRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene, saddle
from tests.ml.exact_posterior import exact_posterior

FAMILY = LinearRegression(dimensions=3, noise_std=0.5, prior_std=1.0)


def rows(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    target = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    noise = 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.cat([features, (target + noise).unsqueeze(1)], 1)


def test_an_optimum_is_ready(scene: Scene) -> None:
    readiness = check_variational(scene.family, scene.posterior, scene.data)
    assert readiness.ready
    assert readiness.levels == ("proved",)
    assert readiness.distance < 1e-15
    assert readiness.numbers["residual"] < 1e-8
    assert readiness.numbers["lambda_min"] > 0.3


def test_the_curvature_is_in_units_of_the_posterior() -> None:
    """In the natural metric the widths of a regression have curvature 1, so its means decide."""
    data = rows()
    optimum = FAMILY.optimum(data)
    hessian = torch.linalg.inv(exact_posterior(FAMILY, data)[1])
    least = float(torch.linalg.eigvalsh(hessian * optimum.std * optimum.std.unsqueeze(1))[0])
    assert least < 0.95
    assert check_variational(FAMILY, optimum, data).numbers["lambda_min"] == pytest.approx(least, rel=1e-9)


def test_the_residual_of_a_width_is_in_units_of_the_posterior() -> None:
    """With σ = 1.01 σ* in one coordinate, σ(σ/σ*² - 1/σ)/√2 = (1.01² - 1)/√2."""
    data = rows()
    optimum = FAMILY.optimum(data)
    wider = MeanFieldGaussian(optimum.mean, optimum.std * torch.tensor([1.0, 1.01, 1.0], dtype=torch.float64))
    residual = check_variational(FAMILY, wider, data).numbers["residual"]
    assert residual == pytest.approx((1.01**2 - 1) / math.sqrt(2), rel=1e-9)


@pytest.mark.parametrize(("widths", "ready"), [(1.2e-3, True), (1.6e-3, False)])
def test_a_millionth_of_a_nat_from_the_optimum_is_ready(widths: float, ready: bool) -> None:
    """A distance of r widths is a divergence of ½r²: 0.7e-6 and 1.3e-6 nats."""
    data = rows()
    optimum = FAMILY.optimum(data)
    gap = torch.tensor([widths, 0.0, 0.0], dtype=torch.float64) * optimum.std
    readiness = check_variational(FAMILY, MeanFieldGaussian(optimum.mean + gap, optimum.std), data)
    assert readiness.distance == pytest.approx(widths**2 / 2, rel=0.1)
    assert (readiness.levels, readiness.ready) == (("proved",), ready)


def test_the_residual_of_a_mean_is_in_units_of_the_posterior() -> None:
    """Off by a hundredth of a width along one weight, which is a divergence of ½ (0.01)²."""
    data = rows()
    optimum = FAMILY.optimum(data)
    gap = torch.tensor([0.01, 0.0, 0.0], dtype=torch.float64) * optimum.std
    readiness = check_variational(FAMILY, MeanFieldGaussian(optimum.mean + gap, optimum.std), data)
    hessian = torch.linalg.inv(exact_posterior(FAMILY, data)[1])
    assert readiness.numbers["residual"] == pytest.approx(float((optimum.std * (hessian @ gap)).norm()), rel=1e-9)
    assert readiness.levels == ("proved",)
    assert 4.9e-5 < readiness.distance < 5.2e-5
    assert "polish" in readiness.advice[0]
    assert not readiness.ready


def test_a_posterior_far_from_its_optimum_is_certified_after_newton_steps(scene: Scene) -> None:
    far = MeanFieldGaussian(scene.posterior.mean + 0.3, scene.posterior.std)
    readiness = check_variational(scene.family, far, scene.data)
    assert (readiness.levels, readiness.distance) == (("proved",), math.inf)
    assert "has not reached its optimum: run `lethe model polish`" in readiness.advice[0]
    assert any("not shown" in finding for finding in readiness.findings)
    above = scene.family.expand(far, scene.data).energy - scene.family.expand(scene.posterior, scene.data).energy
    assert readiness.numbers["could_fall"] == pytest.approx(above, rel=1e-9)
    assert readiness.numbers["epsilon_in_reach"] < 1e-6


def test_a_saddle_cannot_be_polished(scene: Scene) -> None:
    readiness = check_variational(scene.family, saddle(scene), scene.data)
    assert readiness.levels == ()
    assert readiness.numbers["lambda_min"] <= 0
    assert readiness.numbers["epsilon_in_reach"] == math.inf
    assert math.isnan(readiness.numbers["could_fall"])
    assert any("another start" in advice for advice in readiness.advice)
