from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.certify.weight_mixing import measure_weights
from ml.inference.function_mixing import FunctionMixing
from ml.posteriors.sample_set import SampleSet

FUNCTIONS = FunctionMixing(50, 4, 1.01, 1.05, 1.0, 700.0, 20.0, 1_000)


def weighted(log_weights: torch.Tensor) -> SampleSet:
    """Return chains (chains, draws) of any parameter, with these weights."""
    chains, length = log_weights.shape
    samples = torch.arange(chains * length, dtype=torch.float64).unsqueeze(1)
    return SampleSet(samples, torch.arange(chains).repeat_interleave(length), log_weights.flatten())


def normal(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 250, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_independent_weights_are_worth_their_number() -> None:
    mixing = measure_weights(weighted(0.5 * normal()), FUNCTIONS)
    assert all(assumption.holds for assumption in mixing.assumptions())
    assert 800 < mixing.independent_draws <= 1_000


def test_autocorrelated_weights_are_worth_fewer() -> None:
    """θ_t+1 = 0.8 θ_t + noise is worth a ninth of its draws."""
    series = normal()
    for step in range(1, 250):
        series[:, step] = 0.8 * series[:, step - 1] + 0.6 * series[:, step]
    assert measure_weights(weighted(0.5 * series), FUNCTIONS).independent_draws == pytest.approx(1_000 / 9, rel=0.4)


def test_draws_that_repeat_themselves_count_once() -> None:
    mixing = measure_weights(weighted(0.5 * normal()), replace(FUNCTIONS, distinct_draws=60))
    assert mixing.independent_draws == 60
    assert [assumption.holds for assumption in mixing.assumptions()] == [True, False]


def test_chains_that_disagree_about_the_forgotten_rows_are_refused_with_what_to_do() -> None:
    apart = 0.5 * normal() + torch.arange(4).unsqueeze(1)
    agree, _ = measure_weights(weighted(apart), FUNCTIONS).assumptions()
    assert not agree.holds
    assert "refresh them on the retained rows" in agree.meaning


def test_even_weights_mix_as_the_panel_does() -> None:
    mixing = measure_weights(weighted(torch.zeros(4, 250, dtype=torch.float64)), FUNCTIONS)
    assert (mixing.r_hat, mixing.ess, mixing.independent_draws) == (1.01, 700.0, 700.0)
