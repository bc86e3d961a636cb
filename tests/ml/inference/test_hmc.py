from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.hmc import HMC, Phase, step


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def quartic(theta: Tensor) -> tuple[Tensor, Tensor]:
    """U = Σ(θ²/2 + θ⁴/4), which has curvature 1 at its mode."""
    return (theta.square() / 2 + theta**4 / 4).sum(1), theta + theta**3


def gaussian(theta: Tensor) -> tuple[Tensor, Tensor]:
    return 25 * theta.square().sum(1) / 2, 25 * theta


def test_a_gaussian_is_turned_exactly_and_every_end_is_accepted() -> None:
    """300 dimensions: a quarter turn by two steps keeps |x|² + |r|², so no end is refused."""
    start = torch.randn(4, 300, generator=seed(0), dtype=torch.float64) / 5
    positions = list(islice(HMC(steps=2, tuning=0).walk(gaussian, start, seed(1), curvature=25.0), 50))
    assert all(bool((after != before).all()) for before, after in pairwise(positions))
    draws = torch.stack(positions) * 5
    assert float(draws.square().mean()) == pytest.approx(1.0, abs=4 * math.sqrt(2 / draws.numel()))


def test_a_step_can_be_reversed() -> None:
    x, momentum = torch.randn(2, 3, 5, generator=seed(2), dtype=torch.float64)
    there = step(quartic, Phase(x, momentum, *quartic(x)), 0.3)
    back = step(quartic, Phase(there.x, -there.momentum, there.value, there.gradient), 0.3)
    assert torch.allclose(back.x, x, rtol=0, atol=1e-13)
    assert torch.allclose(back.momentum, -momentum, rtol=0, atol=1e-13)


def test_a_step_keeps_the_energy_to_third_order() -> None:
    x, momentum = torch.randn(2, 3, 5, generator=seed(3), dtype=torch.float64) / 2
    phase = Phase(x, momentum, *quartic(x))
    long, short = (
        float((step(quartic, phase, angle).hamiltonian - phase.hamiltonian).abs().max()) for angle in (0.02, 0.01)
    )
    assert 6 < long / short < 10


def test_draws_are_of_a_posterior_that_is_not_gaussian() -> None:
    """Moments of e^(-θ²/2 - θ⁴/4) by quadrature, within four standard errors of 20,000 nearly independent draws."""
    start = torch.zeros(200, 1, dtype=torch.float64)
    draws = torch.cat(list(islice(HMC(steps=2, tuning=0).walk(quartic, start, seed(4), 1.0), 110))[10:])
    grid = torch.linspace(-6, 6, 10_001, dtype=torch.float64).unsqueeze(1)
    density = torch.softmax(-quartic(grid)[0], 0).unsqueeze(1)
    for power in (1, 2, 4):
        expected, square = (float((density * grid ** (power * twice)).sum()) for twice in (1, 2))
        error = math.sqrt((square - expected**2) / 10_000)
        assert float((draws**power).mean()) == pytest.approx(expected, abs=4 * error)


def test_the_steps_double_until_enough_ends_are_accepted() -> None:
    """A posterior 40 times narrower than the curvature says: only tuned steps of a fraction of it are accepted."""

    def narrow(theta: Tensor) -> tuple[Tensor, Tensor]:
        return 1600 * theta.square().sum(1) / 2, 1600 * theta

    start = torch.zeros(20, 10, dtype=torch.float64)

    def accepted(tuning: int) -> float:
        walked = torch.stack(list(islice(HMC(2, tuning).walk(narrow, start, seed(5), 1.0), 90))[69:])
        return float((walked[1:] != walked[:-1]).any(2).double().mean())

    assert accepted(0) < 0.05
    assert accepted(60) > 0.6


@pytest.mark.parametrize(("steps", "tuning"), [(0, 10), (4, -1)])
def test_an_invalid_configuration_is_refused(steps: int, tuning: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1 step"):
        HMC(steps, tuning)
