from __future__ import annotations

import json
import math
import re

import pytest
import torch

from ml.certify.readiness import check_network, check_samples, check_variational
from ml.forgetting.network import DEFAULT_RECIPE
from ml.models.linear import LinearRegression
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from tests.ml.conftest import Scene, saddle
from tests.ml.networks import TINY, dense_gauss_newton, learnable_rows, minimised

FAMILY = LinearRegression(dimensions=3, noise_std=0.5, prior_std=1.0)


def rows(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    target = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    noise = 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.cat([features, (target + noise).unsqueeze(1)], 1)


def samples(width: float = 1.0, chains: int = 4, each: int = 1000, apart: float = 0.0) -> SampleSet:
    """Independent draws of the exact posterior; wider, or the chains set apart, if asked."""
    mean, covariance = FAMILY.exact_posterior(rows())
    noise = torch.randn(chains * each, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chain = torch.arange(chains).repeat_interleave(each)
    offsets = width * noise @ torch.linalg.cholesky(covariance).T
    return SampleSet(mean + offsets + apart * chain.unsqueeze(1) * covariance.diagonal().sqrt(), chain)


def test_an_optimum_is_ready(scene: Scene) -> None:
    found = check_variational(scene.family, scene.posterior, scene.data)
    assert found.ready
    assert found.levels == ("proved",)
    assert found.distance < 1e-15
    assert found.numbers["residual"] < 1e-8
    assert found.numbers["lambda_min"] > 0.3


def test_the_residual_is_in_units_of_the_posterior() -> None:
    """Off by a hundredth of a width along one weight, which is a divergence of ½ (0.01)²."""
    data = rows()
    optimum = FAMILY.optimum(data)
    gap = torch.tensor([0.01, 0.0, 0.0], dtype=torch.float64) * optimum.std
    found = check_variational(FAMILY, MeanFieldGaussian(optimum.mean + gap, optimum.std), data)
    hessian = torch.linalg.inv(FAMILY.exact_posterior(data)[1])
    assert found.numbers["residual"] == pytest.approx(float((optimum.std * (hessian @ gap)).norm()), rel=1e-9)
    assert found.levels == ("proved",)
    assert 4.9e-5 < found.distance < 5.2e-5
    assert "polish" in found.advice[0]
    assert not found.ready


def test_a_posterior_far_from_its_optimum_reaches_no_level(scene: Scene) -> None:
    far = MeanFieldGaussian(scene.posterior.mean + 0.3, scene.posterior.std)
    found = check_variational(scene.family, far, scene.data)
    assert (found.levels, found.distance) == ((), math.inf)
    assert "polish" in found.advice[0]
    assert any("not shown" in finding for finding in found.findings)


def test_a_saddle_cannot_be_polished(scene: Scene) -> None:
    found = check_variational(scene.family, saddle(scene), scene.data)
    assert found.levels == ()
    assert found.numbers["lambda_min"] <= 0
    assert "another start" in found.advice[0]


def test_a_network_at_rest_is_ready_to_be_estimated_and_one_that_trembles_is_not() -> None:
    data = learnable_rows(TINY, 400)
    start = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.02).double())
    energy = NetworkEnergy(TINY, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    settled = MeanFieldGaussian(start.mean + minimised(energy, torch.arange(400)), start.std)
    resting, moving = (check_network(TINY, posterior, data) for posterior in (settled, start))
    assert (resting.levels, resting.ready) == (("estimated",), True)
    assert (moving.levels, moving.ready) == (("estimated",), False)
    assert "polish" in moving.advice[0]
    exact = (settled.std * energy.gradient(settled.mean - start.mean, torch.arange(400))).norm()
    assert resting.numbers["residual"] == pytest.approx(float(exact), abs=1e-6)
    curvature = dense_gauss_newton(TINY, settled.mean, data) + torch.eye(31).double() / TINY.prior_std**2
    least = torch.linalg.eigvalsh(curvature * settled.std * settled.std.unsqueeze(1))[0]
    assert 0 < resting.numbers["lambda_min"] < 2 * float(least)


def test_samples_of_the_posterior_are_ready_to_be_estimated() -> None:
    found = check_samples(FAMILY, samples(), rows())
    assert (found.levels, found.advice) == (("estimated",), ())
    assert found.numbers["largest_divergence"] == pytest.approx(math.log(4000))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"width": 2.0}, "(1.9|2.0). times as wide"), ({"apart": 1.0}, "disagree"), ({"each": 20}, "independent ones")],
)
def test_samples_that_are_not_of_the_posterior_are_told_apart(changes: dict[str, float], complaint: str) -> None:
    found = check_samples(FAMILY, samples(**changes), rows())  # type: ignore[arg-type]
    assert found.levels == ()
    assert len(found.advice) == 1
    assert re.search(complaint, found.advice[0])


def test_it_is_plain_json(scene: Scene) -> None:
    content = check_variational(scene.family, saddle(scene), scene.data).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["distance"] is None
    assert content["ready"] is False
