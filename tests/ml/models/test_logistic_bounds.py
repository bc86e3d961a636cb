from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from ml.models import logistic_bounds
from ml.models.logistic_bounds import LARGEST_THIRD, third_bounds
from tests.ml.models import logistic_truth

Z = torch.linspace(-10, 10, 4_001, dtype=torch.float64)
WEIGHTS = torch.exp(-Z.square() / 2) / math.sqrt(2 * math.pi) * 5e-3


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def contribution(centre: Tensor, width: Tensor, alpha: float, beta: float, c: float) -> Tensor:
    """Return E f'''(t)(b³ + 3cb), b = α + βz, by a rule of 4,001 nodes."""
    t = centre.unsqueeze(-1) + width.unsqueeze(-1) * Z
    third = t.sigmoid() * (-t).sigmoid() * (-t / 2).tanh()
    b = alpha + beta * Z
    return third @ (WEIGHTS * (b**3 + 3 * c * b))


def directions(count: int) -> list[tuple[float, float, float]]:
    """Return α, β and c of unit directions for |x| = 1: α² + β² + c ≤ 1."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    units = (parts / parts.norm(dim=1, keepdim=True)).tolist()
    return [(alpha, beta, root**2) for alpha, beta, root in [*units, (1, 0, 0), (0, 1, 0), (0.6, 0.8, 0)]]


@pytest.mark.parametrize("movement", [0.0, 0.05, 1.0])
def test_no_row_contributes_more_anywhere_on_the_ball(movement: float) -> None:
    """a moves by r cos and v by r sin, so that t moves by at most r√(1+z²)."""
    generator = torch.Generator().manual_seed(1)
    width = torch.logspace(-2, 1.5, 40, dtype=torch.float64) + movement
    centre = (2 + width) * torch.randn(40, generator=generator, dtype=torch.float64)
    mean_bound, width_bound = third_bounds(centre, width, torch.full_like(centre, movement))
    for angle in range(0, 360, 60):
        moved = centre + movement * math.cos(math.radians(angle)), width + movement * math.sin(math.radians(angle))
        for alpha, beta, c in directions(12):
            reached = contribution(*moved, alpha, beta, c).abs()
            bound = mean_bound * alpha**2 + width_bound * (beta**2 + c)
            assert bool((reached <= bound * (1 + 1e-9)).all())


@pytest.mark.parametrize(
    ("centre", "width", "factor"), [(1.3, 1e-3, 4), (0.5, 0.7, 8), (-1.0, 3.0, 15), (20.0, 40.0, 15)]
)
def test_the_bounds_are_within_a_factor_of_what_is_reached(centre: float, width: float, factor: float) -> None:
    mean_bound, width_bound = (float(b) for b in third_bounds(vector(centre), vector(width), vector(0.0)))
    reached = max(abs(float(contribution(vector(centre), vector(width), *d))) for d in directions(200))
    assert max(mean_bound, width_bound) <= factor * reached


def test_a_wide_gaussian_smooths_the_third_derivative() -> None:
    """E|f'''| falls with 1/v, but what is summed falls with 1/v²."""
    width = vector(10.0, 100.0, 1000.0)
    bounds, _ = third_bounds(torch.zeros_like(width), width, torch.zeros_like(width))
    assert torch.allclose(bounds * width.square(), bounds[-1] * width[-1] ** 2, rtol=0.1, atol=0)


@pytest.mark.parametrize("width", [0.3, 3.0, 30.0])
def test_where_t_can_be_anything_the_bound_is_that_of_the_worst_t(width: float) -> None:
    mean_bound, width_bound = third_bounds(vector(50.0), vector(width), vector(1e3))
    assert float(mean_bound) == pytest.approx(math.sqrt(2) * LARGEST_THIRD, rel=0.15)
    assert float(width_bound) == pytest.approx(3 * float(mean_bound), rel=1e-6)


def test_bounds_of_confident_rows_vanish() -> None:
    for width in (0.1, 1.0, 10.0):
        bounds = third_bounds(vector(-60.0 * max(width, 1)), vector(width), vector(0.01))
        assert all(float(bound) < 1e-12 for bound in bounds)


def test_derivatives_of_the_loss_are_bounded_as_stated() -> None:
    """|f'''| ≤ f'' and |f'''| ≤ 1/(6√3), which is attained at log(2+√3)."""
    grid = [mpmath.mpf(k) / 10 for k in range(-200, 201)]
    assert all(abs(logistic_truth.third(t)) <= logistic_truth.curvature(t) for t in grid)
    assert all(abs(logistic_truth.third(t)) <= LARGEST_THIRD for t in grid)
    assert abs(logistic_truth.third(logistic_bounds._THIRD_PEAK)) == pytest.approx(LARGEST_THIRD, rel=1e-14)


def test_the_integrands_rise_to_their_peaks_and_then_fall() -> None:
    grid = torch.linspace(0, 20, 2001, dtype=torch.float64)
    for function, peak in (
        (logistic_bounds._third, logistic_bounds._THIRD_PEAK),
        (logistic_bounds._kernel, logistic_bounds._KERNEL_PEAK),
    ):
        values = function(grid)
        rises = values.diff() > 0
        assert bool(rises[grid[1:] <= peak].all())
        assert not bool(rises[grid[:-1] >= peak].any())


def test_cells_share_out_the_moments_of_a_gaussian() -> None:
    for step in (35 / 64, 6 / 64):
        z, root, cells = logistic_bounds._cells(step, torch.device("cpu"))
        moments = (cells / root).sum(1)
        assert torch.allclose(moments, vector(1.0, 0.0, 1.0), rtol=0, atol=1e-14)
        assert torch.equal(root, (1 + (z.abs() + step / 2).square()).sqrt())
