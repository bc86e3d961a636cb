from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ml.inference import network_chains, prior_hmc
from ml.inference.chains import LONG_BNN_SGHMC, Chains, Sampled
from ml.inference.network_chains import (
    configure,
    configure_continued,
    continue_chains,
    sample_network,
)
from ml.inference.prior_hmc import PriorHMC
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from tests.ml.networks import TINY

DIGITS = MLP(64, 32, 10)


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def rows(count: int) -> Tensor:
    """Return rows of three classes that overlap: the class is the largest of three noisy features."""
    features = torch.randn(count, 3, generator=seed(3), dtype=torch.float64)
    noise = torch.randn(count, 3, generator=seed(4), dtype=torch.float64)
    return torch.cat([features, (features + 0.5 * noise).argmax(1, keepdim=True)], 1)


def per_chain(sampled: Sampled, values: Tensor) -> Tensor:
    """Return values of the draws as (chains, draws, k)."""
    chains = len(sampled.sample_set.chain.unique())
    return values.unflatten(0, (chains, -1))


def mixing(series: Tensor) -> tuple[float, float]:
    """Return the largest R̂ and the smallest bulk ESS of series of shape (chains, draws, k)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        dataset = arviz.convert_to_dataset({"series": series.numpy()})  # type: ignore[no-untyped-call]
        r_hats, sizes = arviz.rhat(dataset), arviz.ess(dataset, method="bulk")  # type: ignore[no-untyped-call]
        return float(r_hats["series"].max()), float(sizes["series"].min())


def test_draws_of_a_small_network_pass_for_draws_of_its_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, iterations=300)
    data = rows(60)
    sampled = sample_network(TINY, data, seed(0))
    draws = sampled.sample_set.samples
    assert draws.shape == (4 * 280, TINY.parameter_count)
    log_likelihoods = torch.stack([TINY.log_likelihood(theta, data) for theta in draws])
    groups = torch.stack([log_likelihoods[:, :1], log_likelihoods[:, :16].sum(1, keepdim=True)], 1).flatten(1)
    r_hat, ess = mixing(per_chain(sampled, torch.cat([log_likelihoods, groups], 1)))
    assert r_hat <= 1.05
    assert ess >= 200
    diagnostics = sampled.diagnostics
    assert diagnostics.mean_gradient <= diagnostics.mean_gradient_limit
    assert diagnostics.virial <= diagnostics.virial_limit
    assert diagnostics.width == pytest.approx(1.0, abs=0.03)


def test_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, iterations=30)
    first, again, other = (sample_network(TINY, rows(20), seed(value)).sample_set.samples for value in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_chain_starts_at_weights_of_its_own() -> None:
    for network, count in ((DIGITS, 1_437), (LeNet5(), 60_000)):
        starts = network_chains._starts(network, configure(network, count), seed(0))
        assert float(torch.pdist(starts).min()) > 1


@pytest.mark.parametrize(("network", "count", "exact"), [(DIGITS, 1_437, True), (LeNet5(), 60_000, False)])
def test_the_size_decides_between_exact_draws_and_minibatches(network: MLP | LeNet5, count: int, exact: bool) -> None:
    config = configure(network, count)
    assert isinstance(config.algorithm, PriorHMC) == exact
    assert config.batch_size == (None if exact else LONG_BNN_SGHMC.batch_size)


def test_a_batch_has_at_most_all_rows() -> None:
    assert configure(replace(DIGITS, hidden=40_000), 100).batch_size == 100


def test_chains_continue_from_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with steps too short to move: the draws stay at the given positions, chain by chain."""
    positions = torch.randn(3, TINY.parameter_count, generator=seed(5), dtype=torch.float64)
    still = Chains(PriorHMC(1e-12, steps=1, tuning=1), iterations=8, burn_in=2)
    monkeypatch.setattr(network_chains, "configure", lambda *_: still)
    sampled = continue_chains(TINY, rows(20), positions, 5, seed(0))
    expected = positions.repeat_interleave(5, 0)
    assert sampled.sample_set.chain.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert torch.allclose(sampled.sample_set.samples, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("draws", [4, 250, 999])
def test_continued_chains_give_the_draws_wanted(draws: int) -> None:
    for network, count in ((DIGITS, 1_437), (LeNet5(), 60_000)):
        config = configure_continued(network, count, chains=3, draws_per_chain=draws)
        assert (config.count, config.draws_per_chain) == (3, draws)
        assert config.is_draw(config.iterations)


def test_the_expected_cost_is_near_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, iterations=30)
    steps, iterate = [], prior_hmc.iterate

    def counting(*arguments: Any) -> Any:
        steps.append(arguments[2])
        return iterate(*arguments)

    monkeypatch.setattr(prior_hmc, "iterate", counting)
    sample_network(TINY, rows(60), seed(0))
    assert 0.5 < network_chains.configure(TINY, 60).row_passes(60) / (4 * 60 * sum(steps)) < 2


def test_the_cost_of_minibatches_is_their_rows() -> None:
    config = LONG_BNN_SGHMC
    assert config.row_passes(60_000) == config.count * config.iterations * (config.batch_size or 0)


def shorten(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    """Let exact chains tune for 20 iterations and draw from the others."""
    monkeypatch.setattr(network_chains, "_TUNING", 20)
    long = network_chains.configure
    monkeypatch.setattr(network_chains, "configure", lambda *size: replace(long(*size), iterations=iterations))
