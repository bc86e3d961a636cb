from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference import chains
from ml.inference.chains import (
    CYCLICAL_BNN_SGHMC,
    CYCLICAL_BNN_SGLD,
    SAFE_BNN_SGHMC,
    SAFE_BNN_SGLD,
    Chains,
    sample,
)
from ml.inference.hmc import HMC
from ml.inference.prior_hmc import PriorHMC
from ml.inference.sgld import SGLD, StepSize
from tests.ml.networks import SmallConvolutional

CONVOLUTIONAL = SmallConvolutional(prior_std=0.5)


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def images(rows: int) -> Tensor:
    """Return float32 images whose class is the third of the pixels that is bright."""
    generator = seed(4)
    labels = torch.randint(3, (rows,), generator=generator)
    bright = (torch.arange(36) // 12 == labels.unsqueeze(1)).float()
    return torch.cat([bright + 0.5 * torch.randn(rows, 36, generator=generator), labels.unsqueeze(1).float()], 1)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_looped_and_batched_gradients_agree(monkeypatch: pytest.MonkeyPatch, batch_size: int | None) -> None:
    data = images(30).double()
    theta = 0.3 * torch.randn(3, CONVOLUTIONAL.parameter_count, generator=seed(1), dtype=torch.float64)
    batched = chains._energy(CONVOLUTIONAL, data, batch_size, seed(2))(theta)[1]
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", 0)
    monkeypatch.delattr(chains, "_evaluate_batched")
    looped = chains._energy(CONVOLUTIONAL, data, batch_size, seed(2))(theta)[1]
    assert float(batched.abs().max()) > 1
    assert torch.allclose(looped, batched, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batched_parameters", [0, 100])
def test_gradients_are_computed_in_the_precision_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, batched_parameters: int
) -> None:
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", batched_parameters)
    dtypes: set[torch.dtype] = set()

    class Recording(SmallConvolutional):
        def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
            dtypes.update({theta.dtype, data.dtype})
            return super().log_likelihood(theta, data)

    data = images(30)
    theta = 0.3 * torch.randn(2, CONVOLUTIONAL.parameter_count, generator=seed(1), dtype=torch.float64)
    gradient = chains._energy(Recording(prior_std=0.5), data, None, seed(2))(theta)[1]
    assert dtypes == {torch.float32}
    assert gradient.dtype == torch.float64
    exact = chains._energy(CONVOLUTIONAL, data.double(), None, seed(2))(theta)[1]
    assert 0 < float((gradient - exact).abs().max() / exact.abs().max()) < 1e-5


def test_steps_too_short_for_float32_are_not_lost() -> None:
    """Fifty steps of 1e-9 each, on weights of about 0.1, where the spacing of float32 is 7e-9."""
    start = CONVOLUTIONAL.initial(0).mean
    config = Chains(SGLD(StepSize(1e-18 * 50, 0.0)), iterations=50, burn_in=0, batch_size=10, jitter=0.0, count=2)
    draws = sample(CONVOLUTIONAL, images(50), start, config, seed(0)).sample_set.samples.reshape(2, 50, -1)
    assert draws.dtype == torch.float64
    assert float((draws[:, -1] - start).std()) == pytest.approx(math.sqrt(50 * 2e-18), rel=0.25)


@pytest.mark.parametrize("config", [SAFE_BNN_SGLD, SAFE_BNN_SGHMC], ids=["sgld", "sghmc"])
def test_the_safe_defaults_for_networks_learn_and_warn(monkeypatch: pytest.MonkeyPatch, config: Chains) -> None:
    assert (config.count, config.batch_size, config.draws_per_chain, config.preconditioned) == (2, 128, 20, False)
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", 0)
    data, start = images(400), CONVOLUTIONAL.initial(0).mean
    short = dataclasses.replace(config, iterations=300, burn_in=200, thinning=5)
    sampled = sample(CONVOLUTIONAL, data, start, short, seed(0))
    assert sampled.sample_set.samples.shape == (40, CONVOLUTIONAL.parameter_count)

    def error_rate(thetas: Tensor) -> float:
        mean = torch.stack([CONVOLUTIONAL.outputs(theta, data).softmax(1) for theta in thetas]).mean(0)
        return float((mean.argmax(1) != data[:, -1]).double().mean())

    assert error_rate(start.unsqueeze(0)) > 0.4
    assert error_rate(sampled.sample_set.samples) < 0.1
    assert sampled.diagnostics.warning is not None
    assert "the chains disagree" in sampled.diagnostics.warning


@pytest.mark.parametrize("config", [CYCLICAL_BNN_SGLD, CYCLICAL_BNN_SGHMC], ids=["sgld", "sghmc"])
def test_cyclical_chains_learn_and_give_eight_draws_a_cycle(monkeypatch: pytest.MonkeyPatch, config: Chains) -> None:
    assert config.draws_per_chain == 8 * (config.iterations - config.burn_in) / 400
    monkeypatch.setattr(chains, "_MAX_BATCHED_PARAMETERS", 0)
    data = images(400)
    starts = torch.stack([CONVOLUTIONAL.initial(chain).mean for chain in range(2)])
    short = dataclasses.replace(config, iterations=400, burn_in=0)
    draws = sample(CONVOLUTIONAL, data, starts, short, seed(0)).sample_set.samples
    assert draws.shape == (16, CONVOLUTIONAL.parameter_count)
    errors = [(CONVOLUTIONAL.outputs(theta, data).argmax(1) != data[:, -1]).double().mean() for theta in draws]
    assert max(float(error) for error in errors) < 0.1


def test_each_chain_may_have_a_start_of_its_own() -> None:
    starts = torch.randn(3, CONVOLUTIONAL.parameter_count, generator=seed(1), dtype=torch.float64)
    still = Chains(SGLD(StepSize(1e-18, 0.0)), iterations=4, burn_in=0, batch_size=5, count=3)
    draws = sample(CONVOLUTIONAL, images(10), starts, still, seed(0)).sample_set.samples
    assert torch.allclose(draws, starts.repeat_interleave(4, 0), rtol=0, atol=1e-6)
    with pytest.raises(InvalidInput, match="one for each of the 3 chains"):
        sample(CONVOLUTIONAL, images(10), starts[:2], still, seed(0))
    exact = dataclasses.replace(still, algorithm=HMC(2, 0), batch_size=None, preconditioned=True)
    with pytest.raises(InvalidInput, match="around one mode"):
        sample(CONVOLUTIONAL, images(10), starts, exact, seed(0))


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"preconditioned": True}, {"burn_in": 1}])
def test_hmc_in_units_of_the_prior_needs_every_row_and_its_tuning(change: dict[str, Any]) -> None:
    config = Chains(PriorHMC(0.5, steps=2, tuning=3), iterations=20, burn_in=3)
    with pytest.raises(InvalidInput, match=r"PriorHMC reads every row|raise burn_in"):
        dataclasses.replace(config, **change)
