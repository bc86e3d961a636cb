"""Refreshed draws, compared with the closed form: a mixture of one component is conjugate."""

from __future__ import annotations

import pytest
import torch

import ml
from ml.errors import InvalidInput
from ml.inference import refreshing
from ml.inference.chains import Chains
from ml.inference.hmc import HMC
from ml.inference.prior_hmc import PriorHMC
from ml.inference.refreshing import RefreshState, begin_refresh, continue_refresh
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet

FAMILY = ml.build_family("gaussian-mixture", {"components": 1, "dimensions": 2, "prior_std": 1.0})
# On a Gaussian every trajectory is exact, however long its steps.
QUICK = Chains(HMC(steps=1, tuning=10), iterations=120, burn_in=20, preconditioned=True)


@pytest.fixture(autouse=True)
def _quick_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing, "SAFE_HMC", QUICK)


def rows() -> torch.Tensor:
    return torch.randn(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def worn_set(draws: int = 800) -> SampleSet:
    """Draws of the posterior of 8 rows more, whose weights divide these rows out."""
    generator = torch.Generator().manual_seed(2)
    extra = torch.randn(8, 2, generator=generator, dtype=torch.float64) + 0.5
    mean = (rows().sum(0) + extra.sum(0)) / 49
    samples = mean + torch.randn(draws, 2, generator=generator, dtype=torch.float64) / 7
    log_weights = (samples.unsqueeze(1) - extra).square().sum((1, 2)) / 2
    return SampleSet(samples, torch.arange(draws) % 4, log_weights, 1e-12)


def run(state: RefreshState, posterior: SampleSet, seed: int = 0) -> list[RefreshState]:
    return list(continue_refresh(FAMILY, posterior, rows(), state, torch.Generator().manual_seed(seed)))


def test_the_draws_are_of_the_posterior_of_the_retained_rows() -> None:
    posterior = worn_set()
    states = run(begin_refresh(posterior, torch.Generator().manual_seed(0)), posterior)
    refreshed = states[-1].sample_set
    assert refreshed.samples.shape == posterior.samples.shape
    assert not refreshed.log_weights.any()
    assert refreshed.chain.bincount().tolist() == [200] * 4
    truth, std = rows().sum(0) / 41, 41**-0.5
    assert torch.allclose(refreshed.mean, truth, atol=4 * std / 800**0.5)
    assert torch.allclose(refreshed.samples.std(0), torch.full((2,), std, dtype=torch.float64), rtol=0.1)
    assert ml.readiness(FAMILY, refreshed, rows()).levels == ("estimated",)


def test_progress_runs_through_burn_in_and_draws() -> None:
    posterior = worn_set()
    states = run(begin_refresh(posterior, torch.Generator().manual_seed(0)), posterior)
    assert [len(state.draws) for state in states] == [0] * 20 + list(range(1, 201))
    fractions = [state.fraction for state in states]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert [state.done for state in states].index(True) == len(states) - 1
    assert run(states[-1], posterior) == []


def test_each_chain_starts_at_a_draw_picked_by_its_weight() -> None:
    samples = torch.arange(100, dtype=torch.float64).unsqueeze(1)
    log_weights = torch.where(torch.arange(100) % 10 == 3, 0.0, -1e3).double()
    posterior = SampleSet(samples, torch.arange(100) % 4, log_weights)
    state = begin_refresh(posterior, torch.Generator().manual_seed(0))
    assert state.thetas.shape == (4, 1)
    assert (state.thetas % 10 == 3).all()
    assert len(state.thetas.unique()) == 4
    assert state.length == 25


def test_a_set_of_one_chain_is_continued_by_two() -> None:
    state = begin_refresh(SampleSet(torch.randn(9, 2).double(), torch.zeros(9, dtype=torch.int64)), torch.Generator())
    assert (len(state.thetas), state.length) == (2, 5)


@pytest.mark.parametrize("iteration", [5, 60, 218])
def test_a_stored_state_continues_with_the_draws_that_it_has(iteration: int) -> None:
    posterior = worn_set()
    stored = run(begin_refresh(posterior, torch.Generator().manual_seed(0)), posterior)[iteration]
    read = RefreshState.from_bytes(stored.to_bytes()).to(torch.device("cpu"))
    assert torch.equal(read.thetas, stored.thetas)
    assert all(map(torch.equal, read.draws, stored.draws))
    states = run(read, posterior, seed=1)
    burn_in = 10 if stored.draws else 20  # the tuning, or all of it
    assert len(states) == burn_in + 200 - len(stored.draws)
    assert all(map(torch.equal, states[-1].draws, stored.draws))
    assert len(states[-1].draws) == 200


def test_anything_else_is_no_checkpoint() -> None:
    for content in (b"", worn_set().to_bytes()):
        with pytest.raises(InvalidInput, match="begin it anew"):
            RefreshState.from_bytes(content)


def test_networks_continue_in_units_of_their_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    network = MLP(dimensions=2, hidden=3, classes=2, prior_std=0.5)
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(20, 3, generator=generator)
    data[:, 2] = (data[:, 0] > 0).float()
    short = Chains(PriorHMC(0.5, steps=4, tuning=3), iterations=3 + 6, burn_in=3, count=2)
    monkeypatch.setattr(refreshing, "configure_continued", lambda *_: short)
    draws = 0.5 * torch.randn(12, network.parameter_count, generator=generator, dtype=torch.float64)
    posterior = SampleSet(draws, torch.arange(12) % 2)
    states = list(continue_refresh(network, posterior, data, begin_refresh(posterior, generator), generator))
    assert len(states) == 9
    assert states[-1].sample_set.samples.shape == draws.shape
