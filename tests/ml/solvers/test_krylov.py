import math

import pytest
import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.solvers.krylov import Krylov


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_basis_is_orthonormal_and_shows_the_matrix_tridiagonal() -> None:
    root, start = random(40, 40), random(40, seed=1)
    matrix = root @ root.T
    space = Krylov(lambda vector: matrix @ vector, start)
    for _ in range(25):
        space.grow()
    basis = space.basis
    assert torch.allclose(basis @ basis.T, torch.eye(25, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(basis @ matrix @ basis.T, space.tridiagonal, atol=1e-9)
    assert torch.allclose(basis[0], start / start.norm())
    ahead = space.next_direction
    assert ahead is not None
    outward = matrix @ basis[-1] - basis.T @ (basis @ (matrix @ basis[-1]))
    assert torch.allclose(outward, space.next_norm * ahead, atol=1e-9)


def test_it_ends_where_nothing_leads_out() -> None:
    curvature = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64).repeat(5)
    space = Krylov(lambda vector: curvature * vector, torch.ones(15, dtype=torch.float64))
    for _ in range(3):
        space.grow()
    assert space.next_direction is None
    assert space.next_norm == 0
    assert torch.allclose(torch.linalg.eigvalsh(space.tridiagonal), curvature[:3])
    with pytest.raises(ValueError, match="invariant"):
        space.grow()


def test_nan_is_a_numerical_failure() -> None:
    space = Krylov(lambda vector: vector * math.nan, torch.ones(3, dtype=torch.float64))
    with pytest.raises(NumericalFailure, match="NaN"):
        space.grow()
