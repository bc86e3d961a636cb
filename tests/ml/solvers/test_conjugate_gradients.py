import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.solvers import EnergyBound, solve, solve_conjugate_gradients


def vector_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_vector(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-12])
def test_the_residual_is_within_the_tolerance(tolerance: float) -> None:
    root = torch.randn(40, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hessian, vector = root @ root.T + torch.eye(40, dtype=torch.float64), random_vector(40)
    before = vector.clone()
    solution = solve_conjugate_gradients(lambda x: hessian @ x, vector, tolerance, max_iterations=500)
    assert solution.residual <= 1.5 * tolerance * float(vector.norm())
    assert solution.residual == pytest.approx(float((vector - hessian @ solution.x).norm()), rel=1e-9)
    error = float((solution.x - solve(hessian, vector).x).norm())
    assert error <= 1.5 * tolerance * float(vector.norm())  # the least eigenvalue is at least 1
    assert solution.solver == "conjugate gradients"
    assert solution.converged
    assert torch.equal(vector, before)


def test_three_distinct_curvatures_take_three_iterations() -> None:
    curvature = vector_of(1.0, 10.0, 1000.0).repeat(20)
    vector = random_vector(60)
    solution = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-10, max_iterations=60)
    assert solution.iterations == 3
    assert torch.allclose(solution.x, vector / curvature, rtol=1e-9, atol=1e-12)


def test_the_exact_diagonal_reduces_the_iterations_to_one() -> None:
    curvature, vector = torch.logspace(-3, 3, 50, dtype=torch.float64), random_vector(50)
    plain = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-8, max_iterations=1000)
    preconditioned = solve_conjugate_gradients(
        lambda x: curvature * x, vector, 1e-8, max_iterations=1000, diagonal=curvature
    )
    assert preconditioned.iterations == 1 < plain.iterations
    assert torch.allclose(preconditioned.x, vector / curvature, rtol=1e-12, atol=0)


def test_a_rough_diagonal_changes_the_path_not_the_answer() -> None:
    root = torch.randn(10, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    hessian, vector = root @ root.T + torch.eye(10, dtype=torch.float64), random_vector(10)
    solution = solve_conjugate_gradients(lambda x: hessian @ x, vector, 1e-12, 200, diagonal=hessian.diagonal())
    assert torch.allclose(solution.x, solve(hessian, vector).x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("diagonal", [None, torch.logspace(0, 1, 30, dtype=torch.float64)])
def test_its_iterates_are_what_fewer_iterations_return(diagonal: Tensor | None) -> None:
    curvature, vector = torch.logspace(-1, 2, 30, dtype=torch.float64), random_vector(30)
    iterates: list[Tensor] = []
    whole = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-12, 6, diagonal, iterates.append)
    assert len(iterates) == whole.iterations == 6
    for count, iterate in enumerate(iterates, 1):
        shorter = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-12, count, diagonal)
        assert torch.equal(iterate, shorter.x)


def test_too_few_iterations_show_in_the_residual() -> None:
    curvature, vector = torch.logspace(-3, 3, 50, dtype=torch.float64), random_vector(50)
    solution = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-8, max_iterations=5)
    assert solution.iterations == 5
    assert solution.residual > 1e-3 * float(vector.norm())
    assert not solution.converged


@pytest.mark.parametrize("diagonal", [(1.0, -1.0), (0.0, 0.0), (1.0, math.nan), (1.0, math.inf)])
def test_what_is_not_positive_definite_is_a_numerical_failure(diagonal: tuple[float, float]) -> None:
    curvature = vector_of(*diagonal)
    with pytest.raises(NumericalFailure, match="not positive definite"):
        solve_conjugate_gradients(lambda x: curvature * x, vector_of(1.0, 2.0), 1e-6, 10)


def test_negative_curvature_is_detected_in_a_later_iteration() -> None:
    curvature = vector_of(5.0, 4.0, -0.01)
    with pytest.raises(NumericalFailure, match="along direction 3"):
        solve_conjugate_gradients(lambda x: curvature * x, vector_of(1.0, 1.0, 1e-2), 1e-9, 10)


def test_a_vector_of_nan_is_a_numerical_failure() -> None:
    with pytest.raises(NumericalFailure, match="NaN"):
        solve_conjugate_gradients(lambda x: x, vector_of(math.nan, 1.0), 1e-6, 10)


def test_nothing_to_solve_is_zero() -> None:
    solution = solve_conjugate_gradients(lambda x: x, vector_of(0.0, 0.0), 1e-6, 10)
    assert (solution.x.tolist(), solution.residual, solution.iterations) == ([0.0, 0.0], 0.0, 0)


@pytest.mark.parametrize(("tolerance", "iterations"), [(0.0, 5), (-1.0, 5), (1.0, 5), (math.nan, 5), (1e-6, 0)])
def test_invalid_settings_are_refused(tolerance: float, iterations: int) -> None:
    with pytest.raises(InvalidInput, match="tolerance"):
        solve_conjugate_gradients(lambda x: x, vector_of(1.0), tolerance, iterations)


def test_a_preconditioner_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="not positive"):
        solve_conjugate_gradients(lambda x: x, vector_of(1.0, 1.0), 1e-6, 5, diagonal=vector_of(1.0, 0.0))


@pytest.mark.parametrize("share_of_least", [0.999, 0.5, 0.01])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_the_energy_error_bounds_the_distance_to_the_dense_solution(
    share_of_least: float, preconditioned: bool
) -> None:
    """Of 40 parameters, with a condition number of 10⁴; 80 iterations continue where orthogonality is lost."""
    basis = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).Q
    spectrum, scale = torch.logspace(-2, 2, 40, dtype=torch.float64), torch.logspace(-1, 1, 40, dtype=torch.float64)
    diagonal = scale.square() if preconditioned else None
    root = scale if preconditioned else torch.ones_like(scale)
    hessian = root.unsqueeze(1) * (basis * spectrum @ basis.T) * root
    vector, bound = random_vector(40), EnergyBound(1e-2 * share_of_least, 1e-13)
    exact, errors = torch.linalg.solve(hessian, vector), []
    for iterations in (1, 2, 5, 10, 20, 40, 80):
        solution = solve_conjugate_gradients(lambda x: hessian @ x, vector, 1e-15, iterations, diagonal, bound=bound)
        gap = solution.x - exact
        truth = 0.5 * float(gap @ hessian @ gap)
        assert truth <= solution.energy_error
        errors.append(solution.energy_error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2 * errors[0]


def test_the_bound_is_tight_for_the_least_eigenvalue_itself() -> None:
    """With two curvatures Gauss-Radau quadrature with one of them as its node is exact."""
    curvature, vector = vector_of(1.0, 9.0), vector_of(1.0, 1.0)
    solution = solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-9, 1, bound=EnergyBound(1.0, 1e-9))
    gap = solution.x - vector / curvature
    assert solution.energy_error == pytest.approx(0.5 * float(gap @ (curvature * gap)), rel=1e-9)


def test_it_stops_once_the_bound_is_within_its_share_of_the_energy() -> None:
    curvature, vector = torch.logspace(-1, 2, 60, dtype=torch.float64), random_vector(60)
    energy = 0.5 * float((vector.square() / curvature).sum())
    bounded, whole = (
        solve_conjugate_gradients(lambda x: curvature * x, vector, 1e-12, 200, bound=EnergyBound(0.05, share))
        for share in (0.1, 1e-30)
    )
    assert bounded.converged
    assert bounded.iterations < whole.iterations
    assert 0.01 * energy < bounded.energy_error <= 0.1 * energy


def test_what_the_recursion_lost_of_the_residual_is_part_of_the_bound() -> None:
    """Products in single precision: the measured residual stays at rounding while that of the recursion vanishes."""
    curvature, vector = torch.logspace(-2, 2, 50, dtype=torch.float64), random_vector(50)

    def rounded(x: Tensor) -> Tensor:
        return (curvature.float() * x.float()).double()

    solution = solve_conjugate_gradients(rounded, vector, 1e-13, 400, bound=EnergyBound(0.009, 1e-30))
    gap = solution.x - vector / curvature
    assert solution.residual > 1e-10
    assert 0.5 * float(gap @ (curvature * gap)) <= solution.energy_error < 1e-8


def test_without_a_bound_the_energy_error_is_unknown() -> None:
    assert solve_conjugate_gradients(lambda x: x, vector_of(1.0), 1e-6, 5).energy_error == math.inf
    zero = solve_conjugate_gradients(lambda x: x, vector_of(0.0), 1e-6, 5, bound=EnergyBound(1.0, 0.1))
    assert zero.energy_error == 0


@pytest.mark.parametrize(("least_curvature", "share"), [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (1.0, 0.0)])
def test_a_bound_takes_positive_numbers(least_curvature: float, share: float) -> None:
    with pytest.raises(InvalidInput, match="least_curvature"):
        EnergyBound(least_curvature, share)
