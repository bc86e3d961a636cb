import math

import pytest
import torch

from ml.errors import NumericalFailure
from ml.solvers import solve


def test_it_solves_a_known_system() -> None:
    hessian = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    solution = solve(hessian, torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert torch.allclose(solution.x, torch.tensor([1 / 11, 7 / 11], dtype=torch.float64), atol=1e-15)
    assert solution.residual < 1e-15
    assert (solution.iterations, solution.solver, solution.converged) == (1, "cholesky", True)


def test_an_ill_conditioned_system_reports_its_residual() -> None:
    indices = torch.arange(1, 9, dtype=torch.float64)
    hilbert = 1 / (indices.unsqueeze(1) + indices - 1)
    vector = hilbert.sum(1)
    solution = solve(hilbert, vector)
    assert solution.residual == pytest.approx(float((vector - hilbert @ solution.x).norm()), abs=0)
    assert solution.residual < 1e-14


@pytest.mark.parametrize("diagonal", [(1.0, -1.0), (0.0, 1.0), (1.0, math.nan)])
def test_what_is_not_positive_definite_is_a_numerical_failure(diagonal: tuple[float, float]) -> None:
    hessian = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    with pytest.raises(NumericalFailure, match=r"not positive definite.*train it to convergence"):
        solve(hessian, torch.ones(2, dtype=torch.float64))


def test_overflow_is_a_numerical_failure() -> None:
    with pytest.raises(NumericalFailure, match="overflow"):
        solve(1e-200 * torch.eye(2, dtype=torch.float64), 1e200 * torch.ones(2, dtype=torch.float64))
