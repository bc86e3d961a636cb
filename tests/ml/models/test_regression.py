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
    of_rows, of_prior = random_curvature(size), torch.linspace(0, 9, size // 2, dtype=torch.float64)
    before = of_rows.clone()
    whole = of_rows + torch.diag(torch.cat([torch.zeros_like(of_prior), of_prior]))
    largest = float(torch.linalg.eigvalsh(whole)[-1])
    assert largest + 0.5 < third_derivative(of_rows, 0.5, of_prior) <= largest * (1 + 1e-5) + 0.5 + 1e-12
    assert torch.equal(of_rows, before)


def test_a_guess_that_cannot_be_proved_gives_way_to_the_frobenius_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    of_rows = random_curvature(6)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: torch.ones(len(matrix), dtype=torch.float64))
    bound = third_derivative(of_rows, 0.0, torch.zeros(3, dtype=torch.float64))
    assert bound == pytest.approx(float(of_rows.norm()), rel=1e-12)
    assert bound >= float(of_rows.norm())


def test_no_bound_is_infinite() -> None:
    of_rows, of_prior = random_curvature(4), torch.ones(2, dtype=torch.float64)
    assert third_derivative(of_rows, math.inf, of_prior) == math.inf
    assert third_derivative(of_rows, 0.0, of_prior * math.inf) == math.inf
    assert third_derivative(of_rows * math.nan, math.nan, of_prior) == math.inf


def test_the_prior_bends_most_where_a_std_is_smallest_in_the_ball() -> None:
    posterior = MeanFieldGaussian(torch.zeros(2).double(), torch.tensor([0.5, 1.0], dtype=torch.float64))
    expected = torch.tensor([2 / 0.4**3, 2 / 0.9**3], dtype=torch.float64)
    assert torch.allclose(WeightPrior(1.0).third_derivative(posterior, 0.1), expected, rtol=1e-12)
    assert WeightPrior(1.0).third_derivative(posterior, 0.5).isinf().tolist() == [True, False]
