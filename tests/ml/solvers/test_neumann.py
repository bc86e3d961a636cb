import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers import solve, solve_neumann


def vector_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_each_direction_recovers_its_share_of_the_solution() -> None:
    """1 - (1-cλ)^(J+1), the closed form of the truncated series."""
    curvature, vector = vector_of(0.001, 0.1, 1.0, 1.9), vector_of(3.0, -1.0, 2.0, 0.5)
    solution = solve_neumann(lambda x: curvature * x, vector, num_terms=32, scale=1.0)
    share = 1 - (1 - curvature) ** 33
    assert torch.allclose(solution.x, share * vector / curvature, rtol=1e-12, atol=0)
    assert (solution.iterations, solution.solver) == (32, "neumann")
    assert solution.residual == pytest.approx(float((vector - curvature * solution.x).norm()), rel=1e-12)
    assert float(share[0]) < 0.04
    assert not solution.converged


def test_enough_terms_reach_the_exact_inverse() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(6, dtype=torch.float64)
    vector = torch.randn(6, generator=generator, dtype=torch.float64)
    before = vector.clone()
    scale = 1 / float(torch.linalg.eigvalsh(hessian)[-1])
    solution = solve_neumann(lambda x: hessian @ x, vector, num_terms=2000, scale=scale)
    assert torch.allclose(solution.x, solve(hessian, vector).x, rtol=1e-11, atol=0)
    assert torch.equal(vector, before)
    assert solution.converged


def test_it_makes_a_product_for_each_term_and_one_for_the_residual() -> None:
    products = []

    def matvec(x: Tensor) -> Tensor:
        products.append(x)
        return 0.5 * x

    solve_neumann(matvec, vector_of(1.0), num_terms=7, scale=1.0)
    assert len(products) == 8


def test_its_iterates_are_the_partial_sums() -> None:
    curvature, vector = vector_of(0.01, 0.5, 1.7), vector_of(3.0, -1.0, 2.0)
    iterates: list[Tensor] = []
    solution = solve_neumann(lambda x: curvature * x, vector, num_terms=9, scale=0.8, on_iterate=iterates.append)
    assert len(iterates) == 9
    assert torch.equal(iterates[-1], solution.x)
    for terms, iterate in enumerate(iterates, 1):
        share = 1 - (1 - 0.8 * curvature) ** (terms + 1)
        assert torch.allclose(iterate, share * vector / curvature, rtol=1e-12, atol=0)


def test_the_iterate_that_reveals_divergence_is_passed_on() -> None:
    """The residual is ((1-3)^j, 30·0.9^j): it falls first, and exceeds its start, 30.02, with the fifth product."""
    curvature, vector = vector_of(3.0, 0.1), vector_of(1.0, 30.0)
    iterates: list[Tensor] = []
    with pytest.raises(NumericalFailure, match="after 5 products"):
        solve_neumann(lambda x: curvature * x, vector, num_terms=9, scale=1.0, on_iterate=iterates.append)
    assert len(iterates) == 5
    assert iterates[-1].tolist() == pytest.approx([-21.0, 300 * (1 - 0.9**6)])


def test_it_converges_up_to_two_over_the_curvature_and_not_beyond() -> None:
    solve_neumann(lambda x: 1.999 * x, vector_of(1.0, 2.0), num_terms=500, scale=1.0)
    with pytest.raises(NumericalFailure, match="smaller scale"):
        solve_neumann(lambda x: 2.001 * x, vector_of(1.0, 2.0), num_terms=1, scale=1.0)


@pytest.mark.parametrize("curvature", [-0.1, math.nan, math.inf])
def test_what_cannot_converge_is_a_numerical_failure(curvature: float) -> None:
    with pytest.raises(NumericalFailure, match="diverges"):
        solve_neumann(lambda x: curvature * x, vector_of(1.0, 2.0), num_terms=32, scale=1.0)


def test_nothing_to_solve_is_zero() -> None:
    solution = solve_neumann(lambda x: 0.5 * x, vector_of(0.0, 0.0), num_terms=3, scale=1.0)
    assert (solution.x.tolist(), solution.residual) == ([0.0, 0.0], 0.0)


@pytest.mark.parametrize(("num_terms", "scale"), [(0, 1.0), (3, 0.0), (3, -1.0), (3, math.inf), (3, math.nan)])
def test_invalid_settings_are_refused(num_terms: int, scale: float) -> None:
    with pytest.raises(InvalidInput, match="positive scale"):
        solve_neumann(lambda x: x, vector_of(1.0), num_terms, scale)
