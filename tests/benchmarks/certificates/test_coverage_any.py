from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.certificates import coverage_any as module
from benchmarks.certificates.coverage_any import QUICK, coverage_any, draw_network_rows, split_chains
from ml.posteriors.sample_set import SampleSet

TINY = replace(QUICK, trials=3, chain_sets=1, draws_per_chain=20, particles=60)


def test_the_report_has_todays_keys_and_those_of_each_model() -> None:
    """Chains this short are refused for networks: that counts, too."""
    report = coverage_any(TINY, lambda _phase, _share: None)
    assert {"trials", "issued", "covered", "above", "refused", "share", "strata", "seed", "coverage"} <= set(report)
    assert list(report["models"]) == ["linear", "logistic", "network"]
    assert [model["trials"] for model in report["models"].values()] == [3, 3, 3]
    assert all(model["issued"] + model["refused"] == 3 for model in report["models"].values())
    assert report["coverage"] == report["share"] >= 0.95


@pytest.mark.soak
def test_every_model_is_covered() -> None:
    report = coverage_any(QUICK, lambda _phase, _share: None)
    assert all(model["issued"] > 0 and model["coverage"] >= 0.9 for model in report["models"].values())


def test_groups_divide_the_trials() -> None:
    assert module.Plan().groups == 10
    assert module.Plan(trials=201).groups == 11


def test_labels_follow_the_network() -> None:
    rows = draw_network_rows(50, torch.Generator().manual_seed(0))
    assert set(rows[:, -1].tolist()) <= {0.0, 1.0}
    assert rows.shape == (50, 3)


def test_chains_are_divided_in_order() -> None:
    chains = SampleSet(torch.arange(8, dtype=torch.float64).unsqueeze(1), torch.arange(4).repeat_interleave(2))
    first, second = split_chains(chains, 2)
    assert (first.samples.flatten().tolist(), second.chain.tolist()) == ([0, 1, 2, 3], [0, 0, 1, 1])
