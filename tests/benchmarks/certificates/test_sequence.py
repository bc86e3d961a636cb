from __future__ import annotations

import math

import pytest
import torch

import ml
from benchmarks.certificates.sequence import Sequence, Step, draw_anew, forget_in_sequence
from ml.inference import refreshing
from ml.inference.chains import Chains
from ml.inference.hmc import HMC
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet

FAMILY = ml.build("gaussian-mixture", {"components": 1, "dimensions": 2, "prior_std": 1.0})
POLICY = ml.Policy(epsilon=10.0, level="estimated", rungs=("reweight",))


def rows() -> torch.Tensor:
    return torch.randn(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def exact_draws(count: int) -> SampleSet:
    generator = torch.Generator().manual_seed(2)
    offsets = torch.randn(count, 2, generator=generator, dtype=torch.float64) / math.sqrt(31)
    return SampleSet(rows().sum(0) / 31 + offsets, torch.arange(count) % 4)


def test_the_share_falls_until_a_refresh_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Chains(HMC(steps=1, tuning=10), iterations=120, burn_in=20, preconditioned=True)
    monkeypatch.setattr(refreshing, "SAFE_HMC", quick)
    steps = forget_in_sequence(FAMILY, exact_draws(1000), rows(), 6, floor=0.97, policy=POLICY, seed=0)
    assert [step.person for step in steps] == [1, 2, 3, 4, 5, 6]
    refreshed = [step.refresh_seconds is not None for step in steps]
    assert refreshed == [step.share < 0.97 for step in steps]
    assert any(refreshed[:-1])
    after = steps[refreshed.index(True) + 1]
    assert after.share > min(step.share for step in steps)
    assert all(step.ready for step in steps if step.refresh_seconds is not None)
    assert all(step.epsilon is not None and step.epsilon > 0 for step in steps)


def test_no_floor_no_refresh() -> None:
    steps = forget_in_sequence(FAMILY, exact_draws(1000), rows(), 3, floor=0.0, policy=POLICY, seed=0)
    assert all(step.share < 1 for step in steps)
    assert all(step.refresh_seconds is None and step.ready is None for step in steps)


def test_the_summary_counts() -> None:
    steps = (Step(1, 0.9, 0.1, 0.2, 1.0), Step(2, 0.6, 0.1, None, 3.0, refresh_seconds=5.0, ready=True))
    summary = Sequence("mlp", 10, 3, 100, "posterior", 0.7, None, steps).summary
    assert (summary["people"], summary["certified"], summary["refreshes"]) == (2, 1, 1)
    assert (summary["least_share"], summary["largest_epsilon"], summary["seconds_a_person"]) == (0.6, 0.2, 2.0)
    assert (summary["refresh_seconds"], summary["ready_after_refresh"]) == (5.0, 1)
    assert "steps" not in summary


def test_networks_are_sampled_as_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[MLP] = []

    class Done(Exception):
        pass

    def sample_network(network: MLP, _rows: object, _generator: object) -> None:
        sampled.append(network)
        raise Done

    monkeypatch.setattr("benchmarks.certificates.sequence.sample_network", sample_network)
    network = MLP(dimensions=2, hidden=2, classes=2)
    with pytest.raises(Done):
        draw_anew(network, torch.zeros(4, 3), seed=0)
    assert sampled == [network]
