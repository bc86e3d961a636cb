from __future__ import annotations

import json
import math
import re

import pytest
import torch

from ml.certify.readiness import Readiness, check_network, check_samples, check_variational, diagnose_samples
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.diagnostics import diagnose, evenly_spaced_draws
from ml.models.linear import LinearRegression
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from tests.ml.conftest import Scene, saddle
from tests.ml.exact_posterior import exact_posterior
from tests.ml.networks import TINY, OneLayer, dense_gauss_newton, learnable_rows, minimised

FAMILY = LinearRegression(dimensions=3, noise_std=0.5, prior_std=1.0)


def rows(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    target = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    noise = 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.cat([features, (target + noise).unsqueeze(1)], 1)


def samples(width: float = 1.0, chains: int = 4, each: int = 1000, apart: float = 0.0) -> SampleSet:
    """Independent draws of the exact posterior, optionally wider or with chains that are apart."""
    mean, covariance = exact_posterior(FAMILY, rows())
    noise = torch.randn(chains * each, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chain = torch.arange(chains).repeat_interleave(each)
    offsets = width * noise @ torch.linalg.cholesky(covariance).T
    return SampleSet(mean + offsets + apart * chain.unsqueeze(1) * covariance.diagonal().sqrt(), chain)


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


def test_a_posterior_far_from_its_optimum_reaches_no_level(scene: Scene) -> None:
    far = MeanFieldGaussian(scene.posterior.mean + 0.3, scene.posterior.std)
    readiness = check_variational(scene.family, far, scene.data)
    assert (readiness.levels, readiness.distance) == ((), math.inf)
    assert "polish" in readiness.advice[0]
    assert any("not shown" in finding for finding in readiness.findings)


def test_a_saddle_cannot_be_polished(scene: Scene) -> None:
    readiness = check_variational(scene.family, saddle(scene), scene.data)
    assert readiness.levels == ()
    assert readiness.numbers["lambda_min"] <= 0
    assert "another start" in readiness.advice[0]


def test_a_network_is_ready_once_training_has_converged() -> None:
    data = learnable_rows(TINY, 400)
    start = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.02).double())
    energy = NetworkEnergy(TINY, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    converged = MeanFieldGaussian(start.mean + minimised(energy, torch.arange(400)), start.std)
    after, before = (check_network(TINY, posterior, data) for posterior in (converged, start))
    assert (after.levels, after.ready) == (("estimated",), True)
    assert (before.levels, before.ready) == (("estimated",), False)
    assert "polish" in before.advice[0]
    exact = (converged.std * energy.gradient(converged.mean - start.mean, torch.arange(400))).norm()
    assert after.numbers["residual"] == pytest.approx(float(exact), abs=1e-6)
    curvature = dense_gauss_newton(TINY, converged.mean, data) + torch.eye(31).double() / TINY.prior_std**2
    least = torch.linalg.eigvalsh(curvature * converged.std * converged.std.unsqueeze(1))[0]
    assert 0 < after.numbers["lambda_min"] < 2 * float(least)


@pytest.mark.parametrize(("share", "ready"), [(0.005, True), (0.015, False)])
def test_a_network_is_ready_up_to_the_gradient_of_one_row_in_a_hundred(share: float, ready: bool) -> None:
    """A small drift from the minimum, in a direction in which its gradient equals that of this share of the rows."""
    network = OneLayer()
    data = learnable_rows(network, 400)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.02).double())
    energy = NetworkEnergy(network, data, frozen_draws(start, DEFAULT_RECIPE.draws, seed=0))
    minimum, direction = minimised(energy, torch.arange(400)), torch.eye(16, dtype=torch.float64)[0]

    def readiness(length: float) -> Readiness:
        posterior = MeanFieldGaussian(start.mean + minimum + length * direction, start.std)
        return check_network(network, posterior, data)

    numbers = readiness(1e-3).numbers
    drifted = readiness(1e-3 * share * 400 * numbers["residual_of_a_row"] / numbers["residual"])
    assert drifted.numbers["residual"] == pytest.approx(share * 400 * numbers["residual_of_a_row"], rel=0.1)
    assert drifted.ready == ready
    assert f"that of {share * 400:.0f} rows pulling in one direction; the data set has 400 rows" in drifted.findings[0]


def test_the_residual_of_a_row_is_that_of_the_fisher_diagonal() -> None:
    """√(Σ_j σ_j² F_jj/n), F estimated from labels drawn by the network."""
    data = learnable_rows(TINY, 400)
    posterior = MeanFieldGaussian(TINY.initial(seed=4).mean, torch.full((TINY.parameter_count,), 0.001).double())
    diagonal = dense_gauss_newton(TINY, posterior.mean, data).diagonal() / 400
    expected = math.sqrt(float(posterior.std.square().dot(diagonal)))
    assert check_network(TINY, posterior, data).numbers["residual_of_a_row"] == pytest.approx(expected, rel=0.15)


def test_samples_of_the_posterior_are_ready_to_be_estimated() -> None:
    readiness = check_samples(FAMILY, samples(), rows())
    assert (readiness.levels, readiness.advice) == (("estimated",), ())
    assert readiness.numbers["largest_divergence"] == pytest.approx(math.log(4000))
    assert (readiness.numbers["chains"], readiness.numbers["draws"]) == (4, 4000)
    assert readiness.numbers["width"] == pytest.approx(1.0, abs=0.05)


def test_samples_are_diagnosed_chain_by_chain_with_the_gradients_of_200_draws_each() -> None:
    sample_set = samples()
    chains = sample_set.samples.view(4, 1000, 3)
    selected = evenly_spaced_draws(chains, 200)
    gradients = Potential(FAMILY, rows()).gradients(selected.reshape(-1, 3)).view(4, 200, 3)
    assert diagnose_samples(FAMILY, sample_set, rows()) == diagnose(chains, gradients)
    short = samples(each=20)
    chains = short.samples.view(4, 20, 3)
    gradients = Potential(FAMILY, rows()).gradients(short.samples).view(4, 20, 3)
    assert diagnose_samples(FAMILY, short, rows()) == diagnose(chains, gradients)


def test_chains_are_truncated_to_the_shortest() -> None:
    """The draws beyond it would be noticed: they are ten times as wide."""
    even, longer = samples(chains=2), samples(width=10.0, chains=1, each=500)
    uneven = SampleSet(torch.cat([even.samples, longer.samples]), torch.cat([even.chain, longer.chain]))
    assert diagnose_samples(FAMILY, uneven, rows()) == diagnose_samples(FAMILY, even, rows())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"width": 2.0}, "(1.9|2.0). times as wide"), ({"apart": 1.0}, "disagree"), ({"each": 20}, "independent ones")],
)
def test_samples_of_another_distribution_are_not_ready(changes: dict[str, float], complaint: str) -> None:
    readiness = check_samples(FAMILY, samples(**changes), rows())  # type: ignore[arg-type]
    assert readiness.levels == ()
    assert len(readiness.advice) == 1
    assert re.search(complaint, readiness.advice[0])


def test_readiness_converts_to_json(scene: Scene) -> None:
    content = check_variational(scene.family, saddle(scene), scene.data).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["distance"] is None
    assert content["ready"] is False
