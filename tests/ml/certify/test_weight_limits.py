from __future__ import annotations

import math

import pytest
import torch

from ml.certify.importance import estimate_chi_square, pareto_k, relative_ess
from ml.certify.weight_limits import MAX_K_HAT, describe_worn, min_relative_ess, widening


def test_few_draws_need_evener_weights_and_a_wider_bound() -> None:
    assert min_relative_ess("draws") == 0.1
    assert [min_relative_ess("weighted draws", number) for number in (100, 250, 4_000)] == [0.5, 0.2, 0.2]
    assert [widening(number) for number in (150, 300, 15_000)] == [4.0, 3.0, pytest.approx(2.02)]


def test_worn_weights_say_what_restores_them() -> None:
    assert describe_worn(0.034).startswith("the weights are worn out: 3.4 % of the draws are left")


@pytest.mark.parametrize(("draws", "spread"), [(100, 0.6), (400, 0.9), (1_000, 1.0)])
def test_the_bound_covers_lognormal_weights(draws: int, spread: float) -> None:
    """log w ~ N(0, σ²): w is lognormal under both laws, and E_R log(1 + (w-1)/N) an integral in one dimension."""
    grid = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    mass = torch.softmax(-grid.square() / 2, 0)
    weights = torch.exp(spread * (grid + spread) - spread**2 / 2)  # under p_R, whose log w has the mean σ²/2
    exact = float(mass.dot(torch.log1p((weights - 1) / draws)))
    generator, covered, issued = torch.Generator().manual_seed(1), 0, 0
    for seed in range(60):
        log_weights = spread * torch.randn(draws, generator=generator, dtype=torch.float64)
        even = relative_ess(log_weights) >= min_relative_ess("weighted draws", draws)
        if not even or pareto_k(log_weights, 0.0) > MAX_K_HAT:
            continue
        chi_square = estimate_chi_square(log_weights, torch.arange(4).repeat_interleave(draws // 4), 0.0, seed)
        issued += 1
        covered += exact <= widening(draws) * math.log1p(chi_square.high / draws)
    assert issued >= 20
    assert covered >= 0.95 * issued
