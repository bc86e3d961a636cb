from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import count, islice

import pytest
import torch

from ml.errors import ForgettingError
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.ladder.variational_readiness import OWN_NOISE, check_variational
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.certify.test_fresh_starts import BEST, POOR
from tests.ml.certify.test_fresh_starts import FAMILY as CLUSTERED
from tests.ml.certify.test_fresh_starts import optimum as cluster_optimum
from tests.ml.certify.test_fresh_starts import rows as rows_of_clusters
from tests.ml.conftest import Scene, saddle
from tests.ml.exact_posterior import exact_posterior
from tests.ml.ladder.random_models import RandomModel, random_model
from tests.ml.models.test_softmax import random_rows

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


def test_nothing_can_be_forgotten_of_rows_that_are_all_needed() -> None:
    family = GaussianMixture(components=2, dimensions=1, prior_std=5.0)
    data = torch.tensor([[-3.0], [3.0]], dtype=torch.float64)
    readiness = check_variational(family, train(family, data, family.initial(data, 0)).posterior, data)
    assert (readiness.levels, readiness.numbers["epsilon_in_reach"]) == ((), math.inf)
    assert any("1 rows are too few for 2 components" in finding for finding in readiness.findings)


def test_a_model_that_fits_its_own_noise_is_told_to_take_more_draws() -> None:
    data = random_rows(60, 4, 3)
    few, enough = (
        check_variational(family, train(family, data, family.initial(data, 0)).posterior, data)
        for family in (SoftmaxRegression(4, 3, 1.0, draws=4), SoftmaxRegression(4, 3, 1.0))
    )
    assert few.numbers["elbo_distance"] > OWN_NOISE
    assert "fits its own noise: train and register it with more than 4 draws" in few.advice[-1]
    assert few.levels == ("proved",)
    assert enough.ready
    assert 0 < enough.numbers["elbo_distance"] < OWN_NOISE


def test_a_mixture_in_a_poor_minimum_is_told_to_start_elsewhere() -> None:
    data, family = rows_of_clusters(), CLUSTERED
    poor, best = (check_variational(family, cluster_optimum(start, data), data) for start in (POOR, BEST))
    assert poor.levels == best.levels == ("proved",)
    assert best.ready
    assert (best.numbers["lower_starts"], best.numbers["lowest_start"]) == (0, 0)
    assert poor.numbers["lower_starts"] >= 2
    assert poor.numbers["lowest_start"] > 100
    assert "has not found the lowest minimum: train it from another start" in poor.advice[-1]


def count_predictions(models: Iterable[RandomModel]) -> Counter[tuple[bool, bool]]:
    """Count (promised, issued): a bound within the policy for another row than the one that was rehearsed."""
    policy = Policy(1e-3, rungs=("influence", "newton", "warm"))
    counts: Counter[tuple[bool, bool]] = Counter()
    for seed, model in enumerate(models):
        readiness = check_variational(model.family, model.posterior, model.data)
        promised = "proved" in readiness.levels and readiness.numbers["epsilon_in_reach"] <= policy.epsilon
        row = torch.randint(len(model.data), (1,), generator=torch.Generator().manual_seed(seed + 1))
        try:
            issued = forget(model.family, model.posterior, model.data, row, policy).policy_met
        except ForgettingError:
            issued = False
        counts[promised, issued] += 1
    return counts


def test_what_readiness_predicts_is_what_deletions_get() -> None:
    counts = count_predictions(islice(filter(None, map(random_model, count())), 60))
    assert counts[True, False] + counts[False, True] <= 1
    assert counts[False, False] >= 3
    assert counts[True, True] >= 40


@pytest.mark.soak
def test_predictions_agree_with_deletions_for_five_hundred_models() -> None:
    counts = count_predictions(islice(filter(None, map(random_model, count())), 500))
    assert counts[True, False] <= 5
    assert counts[False, True] <= 5
    assert counts[False, False] >= 30
