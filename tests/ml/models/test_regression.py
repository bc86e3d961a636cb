import math

import pytest
import torch

from ml.models.regression import WeightPrior, third_derivative
from ml.posteriors.mean_field import MeanFieldGaussian


def random_curvature(size: int) -> torch.Tensor:
    root = torch.randn(size, size + 3, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return root @ root.T


@pytest.mark.parametrize("size", [2, 10, 60])
def test_the_bound_is_the_largest_eigenvalue_with_the_prior_on_the_diagonal(size: int) -> None:
    row_bound, prior_bound = random_curvature(size), torch.linspace(0, 9, size // 2, dtype=torch.float64)
    before = row_bound.clone()
    whole = row_bound + torch.diag(torch.cat([torch.zeros_like(prior_bound), prior_bound]))
    largest = float(torch.linalg.eigvalsh(whole)[-1])
    assert largest + 0.5 < third_derivative(row_bound, 0.5, prior_bound) <= largest * (1 + 1e-5) + 0.5 + 1e-12
    assert torch.equal(row_bound, before)


def test_an_estimate_that_cannot_be_proved_is_replaced_by_the_frobenius_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    row_bound = random_curvature(6)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: torch.ones(len(matrix), dtype=torch.float64))
    bound = third_derivative(row_bound, 0.0, torch.zeros(3, dtype=torch.float64))
    assert bound == pytest.approx(float(row_bound.norm()), rel=1e-12)
    assert bound >= float(row_bound.norm())


def test_a_missing_bound_is_infinite() -> None:
    row_bound, prior_bound = random_curvature(4), torch.ones(2, dtype=torch.float64)
    assert third_derivative(row_bound, math.inf, prior_bound) == math.inf
    assert third_derivative(row_bound, 0.0, prior_bound * math.inf) == math.inf
    assert third_derivative(row_bound * math.nan, math.nan, prior_bound) == math.inf


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
