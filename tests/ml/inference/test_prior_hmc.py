from __future__ import annotations

import math
from itertools import islice

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.inference.autocorrelation import estimate_mean
from ml.inference.prior_hmc import PriorHMC, Tuning
from tests.ml.inference.test_hmc import quartic

PRECISION = torch.tensor([[60.0, 20.0, 0.0], [20.0, 30.0, -5.0], [0.0, -5.0, 4.0]], dtype=torch.float64)
CENTRE = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def gaussian(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return U of a regression: prior N(0, 0.5²) and a misfit, together the Gaussian N(CENTRE, PRECISION⁻¹)."""
    offsets = theta - CENTRE
    return (offsets @ PRECISION * offsets).sum(1) / 2, offsets @ PRECISION


def walk(algorithm: PriorHMC, iterations: int, burn_in: int, value: int = 0) -> Tensor:
    start = 0.5 * torch.randn(20, 3, generator=seed(9), dtype=torch.float64)
    return torch.stack(list(islice(algorithm.walk(gaussian, start, seed(value)), iterations))[burn_in:], 1)


@pytest.mark.parametrize("scale", [0.5, 0.2])
def test_draws_have_the_mean_and_the_covariance_of_a_gaussian(scale: float) -> None:
    """Any scale draws from the same posterior. First and second moments within four of their standard errors."""
    draws = walk(PriorHMC(scale, steps=4, tuning=50), 450, 50)
    products = ((draws - CENTRE).unsqueeze(3) * (draws - CENTRE).unsqueeze(2)).flatten(2)
    for series, expected in ((draws, CENTRE), (products, torch.linalg.inv(PRECISION).flatten())):
        mean = estimate_mean(series, torch.ones(series.shape[:2], dtype=torch.float64))
        assert float(mean.effective.min()) > 300
        assert float(((mean.value - expected) / mean.error).abs().max()) < 4


def test_draws_are_of_a_posterior_that_is_not_gaussian() -> None:
    """Moments of e^(-θ²/2 - θ⁴/4) by quadrature, within four standard errors of 20,000 nearly independent draws."""
    start = torch.zeros(200, 1, dtype=torch.float64)
    draws = torch.cat(list(islice(PriorHMC(1.0, 2, tuning=20).walk(quartic, start, seed(4)), 120))[20:])
    grid = torch.linspace(-6, 6, 10_001, dtype=torch.float64).unsqueeze(1)
    density = torch.softmax(-quartic(grid)[0], 0).unsqueeze(1)
    for power in (1, 2, 4):
        expected, square = (float((density * grid ** (power * twice)).sum()) for twice in (1, 2))
        error = math.sqrt((square - expected**2) / 10_000)
        assert float((draws**power).mean()) == pytest.approx(expected, abs=4 * error)


def test_the_recursion_of_dual_averaging() -> None:
    """Two iterations by hand: accepted at 0.5, then at 1."""
    first = Tuning.start(0.1).update(0.5)
    assert first.mean == math.log(0.1)  # the first angle, with the weight 1
    assert first.log_angle == pytest.approx(math.log(0.1) - 1 / 0.25 * 0.3 / 11, rel=1e-14)
    second = first.update(1.0)
    assert second.log_angle == pytest.approx(math.log(0.1) - math.sqrt(2) / 0.25 * 0.1 / 12, rel=1e-14)
    weight = 2**-0.75
    assert second.mean == pytest.approx(weight * first.log_angle + (1 - weight) * math.log(0.1), rel=1e-14)


@pytest.mark.parametrize("steps", [1, 200])
def test_the_steps_are_tuned_to_the_acceptance_from_either_side(steps: int) -> None:
    """In 300 directions, half of them thirty times stiffer than the prior, four of five ends are accepted."""
    stiffness = torch.tensor([1.0, 31.0], dtype=torch.float64).repeat(150)
    calls = 0

    def energy(theta: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return (stiffness * theta.square()).sum(1) / 2, stiffness * theta

    start = torch.randn(20, 300, generator=seed(1), dtype=torch.float64)
    positions = PriorHMC(1.0, steps, tuning=100).walk(energy, start, seed(2))
    tuned = list(islice(positions, 100))[-1:]
    calls = 0
    draws = torch.stack([*tuned, *islice(positions, 60)])
    assert float((draws[1:] != draws[:-1]).any(2).double().mean()) == pytest.approx(0.8, abs=0.1)
    assert 12 <= calls / 60 <= 22


def test_the_seed_decides() -> None:
    algorithm = PriorHMC(0.5, steps=3, tuning=5)
    assert torch.equal(walk(algorithm, 10, 0, 1), walk(algorithm, 10, 0, 1))
    assert not torch.equal(walk(algorithm, 10, 0, 1), walk(algorithm, 10, 0, 2))


@pytest.mark.parametrize(("scale", "steps", "tuning"), [(0.0, 4, 10), (math.nan, 4, 10), (1.0, 0, 10), (1.0, 4, 0)])
def test_an_invalid_configuration_is_refused(scale: float, steps: int, tuning: int) -> None:
    with pytest.raises(InvalidInput, match="pass"):
        PriorHMC(scale, steps, tuning)
