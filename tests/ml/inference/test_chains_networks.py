from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from ml.inference import chains
from ml.inference.chains import SAFE_BNN_SGHMC, SAFE_BNN_SGLD, Chains, sample
from ml.inference.sgld import SGLD, StepSize
from tests.ml.networks import SmallConvolutional

CONVOLUTIONAL = SmallConvolutional(prior_std=0.5)


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def pictures(rows: int) -> Tensor:
    """In float32, of the class in whose third of the pixels they are bright."""
    generator = seed(4)
    labels = torch.randint(3, (rows,), generator=generator)
    bright = (torch.arange(36) // 12 == labels.unsqueeze(1)).float()
    return torch.cat([bright + 0.5 * torch.randn(rows, 36, generator=generator), labels.unsqueeze(1).float()], 1)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_chains_one_by_one_have_the_gradients_they_have_batched_parameters(
    monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    data = pictures(30).double()
    theta = 0.3 * torch.randn(3, CONVOLUTIONAL.parameter_count, generator=seed(1), dtype=torch.float64)
    together = chains._gradient(CONVOLUTIONAL, data, batch_size, seed(2))(theta)
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", 0)
    monkeypatch.delattr(chains, "_batched_gradients")
    apart = chains._gradient(CONVOLUTIONAL, data, batch_size, seed(2))(theta)
    assert float(together.abs().max()) > 1
    assert torch.allclose(apart, together, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batched_parameters", [0, 100])
def test_gradients_are_computed_in_the_precision_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, batched_parameters: int
) -> None:
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", batched_parameters)
    seen: set[torch.dtype] = set()

    class Watched(SmallConvolutional):
        def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
            seen.update({theta.dtype, data.dtype})
            return super().log_likelihood(theta, data)

    data = pictures(30)
    theta = 0.3 * torch.randn(2, CONVOLUTIONAL.parameter_count, generator=seed(1), dtype=torch.float64)
    found = chains._gradient(Watched(prior_std=0.5), data, None, seed(2))(theta)
    assert seen == {torch.float32}
    assert found.dtype == torch.float64
    exact = chains._gradient(CONVOLUTIONAL, data.double(), None, seed(2))(theta)
    assert 0 < float((found - exact).abs().max() / exact.abs().max()) < 1e-5


def test_steps_too_short_for_float32_are_not_lost() -> None:
    """Fifty of 1e-9 each, on weights of about 0.1, of which float32 sees every 7e-9 only."""
    start = CONVOLUTIONAL.initial(0).mean
    still = Chains(SGLD(StepSize(1e-18 * 50, 0.0)), iterations=50, burn_in=0, batch_size=10, jitter=0.0, count=2)
    draws = sample(CONVOLUTIONAL, pictures(50), start, still, seed(0)).sample_set.samples.reshape(2, 50, -1)
    assert draws.dtype == torch.float64
    assert float((draws[:, -1] - start).std()) == pytest.approx(math.sqrt(50 * 2e-18), rel=0.25)


@pytest.mark.parametrize("config", [SAFE_BNN_SGLD, SAFE_BNN_SGHMC], ids=["sgld", "sghmc"])
def test_the_safe_defaults_for_networks_learn_and_warn(monkeypatch: pytest.MonkeyPatch, config: Chains) -> None:
    assert (config.count, config.batch_size, config.draws_per_chain, config.preconditioned) == (2, 128, 20, False)
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", 0)
    data, start = pictures(400), CONVOLUTIONAL.initial(0).mean
    short = dataclasses.replace(config, iterations=300, burn_in=200, thinning=5)
    sampled = sample(CONVOLUTIONAL, data, start, short, seed(0))
    assert sampled.sample_set.samples.shape == (40, CONVOLUTIONAL.parameter_count)

    def error(thetas: Tensor) -> float:
        mean = torch.stack([CONVOLUTIONAL.outputs(theta, data).softmax(1) for theta in thetas]).mean(0)
        return float((mean.argmax(1) != data[:, -1]).double().mean())

    assert error(start.unsqueeze(0)) > 0.4
    assert error(sampled.sample_set.samples) < 0.1
    assert sampled.diagnostics.warning is not None
    assert "the chains disagree" in sampled.diagnostics.warning
