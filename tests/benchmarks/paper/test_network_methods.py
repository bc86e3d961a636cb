from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.paper.network_methods import ModelCache, Removal, Sampled, Variational
from ml.baselines.paper_network import PAPER_SGLD, PAPER_VI
from ml.errors import NumericalFailure
from ml.forgetting.network import DEFAULT_RECIPE
from ml.forgetting.tempering import TemperConfig
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.inference.chains import SAFE_BNN_SGLD
from ml.inference.sgld import SGLD, StepSize
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

NETWORK = MLP(dimensions=2, hidden=2, classes=2)
METHOD = Variational(replace(SAFE_BNN, iterations=5, batch_size=8), AveragedDescent(4, 2), DEFAULT_RECIPE, PAPER_VI)
SAMPLED = Sampled(
    SAFE_BNN_SGLD, DEFAULT_RECIPE, PAPER_SGLD, TemperConfig(SGLD(StepSize(0.1, 0.0)), moves=1, batch_size=8)
)


@pytest.fixture
def rows() -> Tensor:
    features = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    return torch.cat([features, (features[:, :1] > 0).float()], 1)


def test_a_model_is_computed_once(rows: Tensor, tmp_path: Path) -> None:
    cache = ModelCache(METHOD, "tiny", tmp_path)
    trained = cache.train(NETWORK, rows, 3, 1, lambda _fraction: None)
    assert {path.name for path in tmp_path.iterdir()} == {
        "tiny-without3-seed1.safetensors",
        "tiny-without3-seed1.json",
    }

    def fail() -> tuple[MeanFieldGaussian, dict[str, float]]:
        raise AssertionError("computed again")

    again = cache.get("without3-seed1", fail)
    assert torch.equal(again.posterior.mean, trained.posterior.mean)
    assert (again.seconds, again.facts) == (trained.seconds, trained.facts)


def test_a_model_without_its_facts_is_incomplete_and_computed_again(rows: Tensor, tmp_path: Path) -> None:
    cache = ModelCache(METHOD, "tiny", tmp_path)
    trained = cache.train(NETWORK, rows, 3, 1, lambda _fraction: None)
    (tmp_path / "tiny-without3-seed1.json").unlink()
    again = cache.get("without3-seed1", lambda: (trained.posterior, {"scale": 0.5}))
    assert again.facts == {"scale": 0.5}


def test_draws_have_the_posterior_moments() -> None:
    posterior = MeanFieldGaussian(torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 2.0]).double())
    draws = METHOD.draws(posterior, 20_000, seed=5)
    assert draws.shape == (20_000, 2)
    assert torch.allclose(draws.mean(0), posterior.mean, atol=0.05)
    assert torch.allclose(draws.std(0), posterior.std, rtol=0.02)


def sample_set(width: float) -> SampleSet:
    noise = torch.randn(40, NETWORK.parameter_count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return SampleSet(NETWORK.initial(0).mean + width * noise, torch.arange(2).repeat_interleave(20))


def test_draws_of_a_sample_set_are_picked_by_their_weights() -> None:
    even = sample_set(0.1)
    assert torch.equal(SAMPLED.draws(even, 40, seed=5), even.samples)
    assert torch.equal(SAMPLED.draws(even, 8, seed=5), even.samples[2::5])
    log_weights = torch.full((40,), -50.0, dtype=torch.float64)
    log_weights[[3, 30]] = 0.0
    weighted = replace(even, log_weights=log_weights)
    assert torch.equal(SAMPLED.draws(weighted, 4, seed=5), even.samples[[3, 3, 30, 30]])


def test_weights_that_collapse_are_refused_with_what_is_left(rows: Tensor) -> None:
    narrow = Removal(NETWORK, sample_set(0.01), rows, torch.arange(3))
    after, facts = SAMPLED.forget("reweight", narrow, {}, lambda _: None)
    assert facts["relative_ess"] > 0.9
    assert bool(after.log_weights.any())
    wide = replace(narrow, before=sample_set(5.0), forgotten=torch.arange(60))
    with pytest.raises(NumericalFailure, match=r"refused: .* % of 40 draws left by 60 rows \(at least 50 %\)"):
        SAMPLED.forget("reweight", wide, {}, lambda _: None)
