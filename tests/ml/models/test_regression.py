import math

import pytest
import torch

from ml.models.regression import WeightPrior, third_derivative_bound
from ml.posteriors.mean_field import MeanFieldGaussian


def random_curvature(size: int) -> torch.Tensor:
    root = torch.randn(size, size + 3, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return root @ root.T


def test_the_bound_adds_the_prior_and_the_slack_to_the_diagonal() -> None:
    row_bound, prior_bound = random_curvature(6), torch.tensor([0.0, 0.3, 9.0], dtype=torch.float64)
    before = row_bound.clone()
    bound = third_derivative_bound(row_bound, 0.1, prior_bound)
    exact = row_bound + torch.diag(torch.cat([torch.zeros_like(prior_bound), prior_bound]) + 0.1)
    assert torch.allclose(bound, exact, rtol=1e-14, atol=0)
    assert bool((bound.diagonal() > exact.diagonal()).all())
    assert torch.equal(row_bound, before)


@pytest.mark.parametrize(("rows", "slack", "prior"), [(1.0, math.inf, 1.0), (1.0, 0.0, math.inf), (math.nan, 0.0, 1.0)])
def test_a_missing_bound_is_infinite(rows: float, slack: float, prior: float) -> None:
    bound = third_derivative_bound(rows * random_curvature(4), slack, prior * torch.ones(2, dtype=torch.float64))
    assert bool(bound.isposinf().all())


def test_the_prior_bound_is_taken_at_the_smallest_width_in_the_ball() -> None:
    """Widths of 6 and 11 are 0.75 and 1.375 in units of 8."""
    posterior = MeanFieldGaussian(torch.zeros(2).double(), torch.tensor([6.0, 11.0], dtype=torch.float64))
    expected = torch.tensor([2 / 0.65**3, 2 / 1.275**3], dtype=torch.float64)
    assert torch.allclose(WeightPrior(1.0).third_derivative(posterior, 0.1), expected, rtol=1e-12)
    assert WeightPrior(1.0).third_derivative(posterior, 0.75).isinf().tolist() == [True, False]


def test_the_rounding_of_the_prior_by_hand() -> None:
    """Scales 8 and 8: 8·(3, 4)/σ² and 8·(6, 11)/σ² for λ/σ², (8/6, 8/11) for 1/s; 64/σ² + (8/6)² for the Hessian."""
    posterior = MeanFieldGaussian(*torch.tensor([[3.0, 4.0], [6.0, 11.0]], dtype=torch.float64))
    rounding = WeightPrior(2.0).rounding(posterior)
    gradient = 8 * (5 + math.hypot(6, 11)) / 4 + math.hypot(8 / 6, 8 / 11)
    assert rounding.gradient == pytest.approx(16 * 2.0**-53 * gradient, rel=1e-12, abs=0)
    assert rounding.hessian == pytest.approx(16 * 2.0**-53 * (16 + (8 / 6) ** 2), rel=1e-12, abs=0)
