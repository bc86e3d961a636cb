from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.paper.network_methods import ModelCache, Variational
from ml.baselines.paper_network import PAPER_VI
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian

NETWORK = MLP(dimensions=2, hidden=2, classes=2)
METHOD = Variational(replace(SAFE_BNN, iterations=5, batch_size=8), AveragedDescent(4, 2), PAPER_VI)


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
