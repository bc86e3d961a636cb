from __future__ import annotations

import math
from itertools import islice

import pytest
import torch

from ml.errors import InvalidInput
from ml.inference.sgld import SGLD, StepSize, normal, step


def test_the_schedule_of_the_paper() -> None:
    step_size = StepSize(4.0, 0.15)
    assert step_size.at(1, 2000) == 4 / 2000
    assert step_size.at(10, 2000) == pytest.approx(4 * 10**-0.15 / 2000, rel=1e-15)
    assert step_size.at(10, 2000) / step_size.at(1, 2000) == pytest.approx(0.7079457843841379, rel=1e-15)
    assert StepSize(0.5, 0.5).at(10, 60_000) == pytest.approx(0.15811388300841897 / 60_000, rel=1e-15)
    assert StepSize(0.3, 0.0).at(999, 10) == 0.03


def test_the_recursion_of_the_paper() -> None:
    """θ_{t+1} = θ_t - ε_t ∇Ũ(θ_t) + N(0, 2ε_t), by hand, from the same seed."""
    scale, power, n = 0.7, 0.15, 5
    start = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    walk = SGLD(StepSize(scale, power)).walk(torch.sin, start, n, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    theta = start
    for t, walked in enumerate(islice(walk, 6), 1):
        epsilon = scale * t**-power / n
        noise = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        theta = theta - epsilon * torch.sin(theta) + math.sqrt(2 * epsilon) * noise
        assert torch.allclose(walked, theta, rtol=0, atol=1e-15)


@pytest.mark.parametrize("k", [0.01, 0.5, 1.0, 1.9])
def test_the_variance_inflation_is_that_of_the_recursion(k: float) -> None:
    """On U = λθ²/2 the variance solves V = (1 - ελ)² V + 2ε: the step taken on θ = 1 gives the factor."""
    curvature, n = 50.0, 200
    sgld = SGLD(StepSize(k / curvature * n, 0.0))
    epsilon = sgld.step_size.at(1, n)
    theta = torch.ones((), dtype=torch.float64)
    factor = float(step(theta, curvature * theta, epsilon, 0 * theta))
    variance = 2 * epsilon / (1 - factor**2)
    assert sgld.variance_inflation(1, n, curvature) == pytest.approx(variance * curvature, rel=1e-12)
    assert sgld.variance_inflation(1, n, 0.0) == 1.0


def test_a_step_of_twice_the_inverse_curvature_is_unstable() -> None:
    assert math.isinf(SGLD(StepSize(2.0, 0.0)).variance_inflation(1, 10, 10.0))
    assert SGLD(StepSize(1.99, 0.0)).variance_inflation(1, 10, 10.0) == pytest.approx(200)


@pytest.mark.parametrize(("curvature", "expected"), [(0.0, 2.0), (4.0, 1.0)])
def test_a_known_curvature_removes_the_excess_variance(curvature: float, expected: float) -> None:
    """ελ = 1, 40,000 chains: twice the variance by the paper's noise, the posterior's by the corrected one."""
    start = torch.zeros(40_000, 1, dtype=torch.float64)
    walk = SGLD(StepSize(1.0, 0.0)).walk(lambda t: 4 * t, start, 4, torch.Generator().manual_seed(0), curvature)
    *_, last = islice(walk, 3)  # a step of ελ = 1 forgets the start at once
    assert float(last.var()) * 4 == pytest.approx(expected, rel=0.03)


def test_the_seed_decides() -> None:
    def end(seed: int) -> torch.Tensor:
        start = torch.zeros(2, 3, dtype=torch.float64)
        *_, last = islice(SGLD(StepSize(1.0, 0.0)).walk(torch.sin, start, 9, torch.Generator().manual_seed(seed)), 5)
        return last

    assert torch.equal(end(1), end(1))
    assert not torch.equal(end(1), end(2))


def test_noise_has_the_requested_variance() -> None:
    noise = normal(9.0, torch.zeros(100_000, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert float(noise.var()) == pytest.approx(9.0, rel=0.02)
    assert abs(float(noise.mean())) < 0.05


@pytest.mark.parametrize(
    ("scale", "power", "message"),
    [
        (0.0, 0.1, "scale"),
        (-1.0, 0.1, "scale"),
        (math.nan, 0.1, "scale"),
        (math.inf, 0.1, "scale"),
        (1.0, -0.1, "power"),
        (1.0, 1.1, "power"),
        (1.0, math.nan, "power"),
    ],
)
def test_a_step_size_outside_its_range_is_invalid_input(scale: float, power: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        StepSize(scale, power)
