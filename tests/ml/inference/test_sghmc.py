from __future__ import annotations

import math
from itertools import islice

import pytest
import torch

from ml.errors import InvalidInput
from ml.inference.sghmc import SGHMC, Motion, step
from ml.inference.sgld import StepSize


def test_the_friction_decays_with_the_square_root_of_the_step() -> None:
    sghmc = SGHMC(StepSize(2.0, 0.15), friction=0.4)
    assert sghmc.friction_at(1) == 0.4
    assert sghmc.friction_at(10) == pytest.approx(0.4 * 10**-0.075, rel=1e-14)
    decay = sghmc.step_size.at(1000, 7) / sghmc.step_size.at(1, 7)
    assert sghmc.friction_at(1000) / 0.4 == pytest.approx(math.sqrt(decay), rel=1e-14)


def test_the_recursion_of_the_paper() -> None:
    """θ_{t+1} = θ_t + v_t, v_{t+1} = (1-α_t) v_t - η_t ∇Ũ(θ_t) + N(0, 2α_tη_t), v_0 ~ N(0, η_0), from the same seed."""
    scale, power, n, alpha_0 = 0.7, 0.15, 5, 0.4
    start = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    walk = SGHMC(StepSize(scale, power), alpha_0).walk(torch.sin, start, n, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    theta, v = start, math.sqrt(scale / n) * torch.randn(2, 3, generator=generator, dtype=torch.float64)
    for t, walked in enumerate(islice(walk, 6), 1):
        eta, alpha = scale * t**-power / n, alpha_0 * t ** (-power / 2)
        noise = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        theta, v = theta + v, (1 - alpha) * v - eta * torch.sin(theta) + math.sqrt(2 * alpha * eta) * noise
        assert torch.allclose(walked, theta, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("k", "friction"), [(0.01, 0.4), (0.1, 0.4), (0.2, 0.6), (0.35, 0.4), (0.001, 0.9)])
def test_the_variance_inflation_is_that_of_the_recursion(k: float, friction: float) -> None:
    """On U = λθ²/2 the recursion is linear: with its matrix A, the covariance of (θ, v) solves P = APAᵀ + Q."""
    curvature, n = 50.0, 200
    sghmc = SGHMC(StepSize(k / curvature * n, 0.0), friction)
    eta = sghmc.step_size.at(1, n)
    theta, v = torch.eye(2, dtype=torch.float64)  # what becomes of (1, 0) and of (0, 1)
    after = step(Motion(theta, v), curvature * theta, eta, friction, torch.zeros_like(theta))
    a = torch.stack([after.theta, after.velocity])
    q = torch.diag(torch.tensor([0.0, 2 * friction * eta], dtype=torch.float64))
    p = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - torch.kron(a, a), q.flatten())
    assert sghmc.variance_inflation(1, n, curvature) == pytest.approx(float(p[0]) * curvature, rel=1e-10)
    assert sghmc.variance_inflation(1, n, 0.0) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize(("k", "friction"), [(0.01, 0.4), (1.0, 0.05), (3.0, 0.05), (0.001, 0.9)])
def test_the_variance_inflation_of_symplectic_steps_is_that_of_the_recursion(k: float, friction: float) -> None:
    """The same, with the gradient at θ + v."""
    curvature, n = 50.0, 200
    sghmc = SGHMC(StepSize(k / curvature * n, 0.0), friction, symplectic=True)
    eta = sghmc.step_size.at(1, n)
    theta, v = torch.eye(2, dtype=torch.float64)
    after = step(Motion(theta, v), curvature * (theta + v), eta, friction, torch.zeros_like(theta))
    a = torch.stack([after.theta, after.velocity])
    q = torch.diag(torch.tensor([0.0, 2 * friction * eta], dtype=torch.float64))
    p = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - torch.kron(a, a), q.flatten())
    assert sghmc.variance_inflation(1, n, curvature) == pytest.approx(float(p[0]) * curvature, rel=1e-10)


def test_symplectic_steps_are_stable_far_beyond_the_friction() -> None:
    """k = 3, friction 0.05, 4,000 chains: the variance that the formula says."""
    sghmc = SGHMC(StepSize(3.0, 0.0), 0.05, symplectic=True)
    start = torch.zeros(4_000, 1, dtype=torch.float64)
    *_, last = islice(sghmc.walk(lambda t: 4 * t, start, 4, torch.Generator().manual_seed(0)), 400)
    assert float(last.var()) * 4 == pytest.approx(sghmc.variance_inflation(1, 4, 4.0), rel=0.1)
    assert math.isinf(SGHMC(StepSize(3.9, 0.0), 0.05, symplectic=True).variance_inflation(1, 4, 4.0))


def test_a_step_beyond_the_friction_is_unstable() -> None:
    assert math.isinf(SGHMC(StepSize(0.4, 0.0), 0.4).variance_inflation(1, 10, 10.0))
    assert 1 < SGHMC(StepSize(0.399, 0.0), 0.4).variance_inflation(1, 10, 10.0) < 1000


@pytest.mark.parametrize("curvature", [0.0, 4.0])
def test_a_known_curvature_removes_the_excess_variance(curvature: float) -> None:
    start = torch.zeros(40_000, 1, dtype=torch.float64)
    sghmc = SGHMC(StepSize(0.2, 0.0), 0.6)
    walk = sghmc.walk(lambda t: 4 * t, start, 4, torch.Generator().manual_seed(0), curvature)
    *_, last = islice(walk, 60)
    expected = sghmc.variance_inflation(1, 4, 4.0) if curvature == 0 else 1.0
    assert sghmc.variance_inflation(1, 4, 4.0) == pytest.approx(1.6)
    assert float(last.var()) * 4 == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("friction", [0.0, 1.0, -0.1, math.nan])
def test_a_friction_outside_its_range_is_invalid_input(friction: float) -> None:
    with pytest.raises(InvalidInput, match="friction"):
        SGHMC(StepSize(1.0, 0.0), friction)
