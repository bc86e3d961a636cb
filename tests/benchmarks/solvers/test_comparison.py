from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from benchmarks.solvers import comparison as solvers
from benchmarks.solvers import figure as solvers_figure
from ml.errors import InvalidInput
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.models.mlp import MLP
from ml.models.network_energy import frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

SEED = 1
PRODUCTS = 40
NETWORK = MLP(64, 3, 10)
PLAIN, DAMPED = 0, 1


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return digits()[0][:700]


@pytest.fixture(scope="module")
def posterior(rows: Tensor) -> MeanFieldGaussian:
    config = replace(SAFE_BNN, iterations=200, decay_every=50, learning_rate=1e-2)
    generator = torch.Generator().manual_seed(SEED)
    return train_network(NETWORK, rows, NETWORK.initial(SEED), config, generator).posterior


@pytest.fixture(scope="module")
def comparison(posterior: MeanFieldGaussian, rows: Tensor) -> solvers.SolverComparison:
    return solvers.compare_network("mlp", NETWORK, posterior, rows, PRODUCTS, SEED)


def dense_system(posterior: MeanFieldGaussian, rows: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """A and g written out, from whole Jacobians. Each row goes to the next draw, or to its mirror image."""
    zeros = torch.nonzero(rows[:, -1] == 0).flatten()[: solvers.FORGOTTEN]
    keep = torch.ones(len(rows), dtype=torch.bool)
    keep[zeros] = False
    retained = rows[keep][torch.randperm(int(keep.sum()), generator=torch.Generator().manual_seed(SEED))]
    draws = frozen_draws(posterior, DEFAULT_RECIPE.draws, SEED)
    matrix = torch.diag(NETWORK.prior_std**-2 + damping * posterior.std**-2)
    for index, draw in enumerate(draws.view(2, -1, draws.shape[1]).transpose(0, 1).flatten(0, 1)):
        chunk = retained[index :: DEFAULT_RECIPE.draws]
        jacobian = torch.autograd.functional.jacobian(partial(NETWORK.outputs, data=chunk), draw, vectorize=True)
        p = NETWORK.outputs(draw, chunk).softmax(1)
        covariance = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        matrix = matrix + jacobian.flatten(0, 1).T @ (covariance @ jacobian).flatten(0, 1)
    gradient = torch.zeros_like(posterior.mean)
    for row in zeros.tolist():
        theta = draws[row % DEFAULT_RECIPE.draws].clone().requires_grad_()
        gradient -= torch.autograd.grad(NETWORK.log_likelihood(theta, rows[row : row + 1]).sum(), theta)[0]
    return matrix, gradient


@pytest.mark.parametrize("which", [PLAIN, DAMPED])
def test_the_first_steps_have_the_error_that_theory_gives(
    comparison: solvers.SolverComparison, posterior: MeanFieldGaussian, rows: Tensor, which: int
) -> None:
    """One step of conjugate gradients goes to the minimum along M⁻¹g: error² = 1 - (gᵀd)²/(dᵀAd · gᵀA⁻¹g)."""
    table = comparison.tables[which]
    a, g = dense_system(posterior, rows, table.damping)
    x = torch.linalg.solve(a, g)
    for solver, d in (("cg", g), ("ours", g * posterior.std**2)):
        expected = (1 - g.dot(d) ** 2 / (d.dot(a @ d) * g.dot(x))).sqrt()
        step = g.dot(d) / d.dot(a @ d) * d
        assert table.paths[solver].error_at(1) == pytest.approx(float(expected), rel=1e-7)
        assert table.paths[solver].residuals[0] == pytest.approx(float((g - a @ step).norm() / g.norm()), rel=1e-7)
    c = 0.1 / (len(rows) - solvers.FORGOTTEN)
    gap = c * (2 * g - c * a @ g) - x
    expected = (gap.dot(a @ gap) / g.dot(x)).sqrt()
    assert table.paths["neumann-paper"].error_at(1) == pytest.approx(float(expected), rel=1e-7)
    assert table.paper_step == pytest.approx(c * table.largest_curvature)
    assert 0.5 < table.largest_curvature / float(torch.linalg.eigvalsh(a)[-1]) <= 1
    assert table.truth == "cholesky"
    assert 0 < table.truth_error < 1e-12


def test_conjugate_gradients_never_lose_ground_and_win(comparison: solvers.SolverComparison) -> None:
    for table in comparison.tables:
        for solver in ("cg", "ours"):
            errors = [error for error in table.paths[solver].errors if error > 1e-10]
            assert len(errors) >= 5
            assert all(later < earlier < 1 for earlier, later in itertools.pairwise(errors))
        reached = {solver: table.paths[solver].error_at(12) or 1.0 for solver in solvers.SOLVERS}
        assert max(reached["ours"], reached["cg"]) < 0.1 * min(reached["neumann-paper"], reached["neumann-safe"])


def test_the_products_that_look_for_a_safe_scale_are_counted(comparison: solvers.SolverComparison) -> None:
    for table in comparison.tables:
        safe, paper = table.paths["neumann-safe"], table.paths["neumann-paper"]
        assert safe.products == list(range(solvers.POWER_PRODUCTS + 1, PRODUCTS + 1))
        assert safe.error_at(solvers.POWER_PRODUCTS) is None
        assert paper.products == list(range(1, PRODUCTS + 1))


def test_without_a_stored_matrix_the_errors_are_the_same(
    comparison: solvers.SolverComparison, posterior: MeanFieldGaussian, rows: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers, "MOST_STORED", 0)
    again = solvers.compare_network("mlp", NETWORK, posterior, rows, 12, SEED)
    for stored, free in zip(comparison.tables, again.tables, strict=True):
        assert free.truth == "conjugate gradients"
        assert 0 < free.truth_error < 1e-4
        for solver, path in free.paths.items():
            expected = stored.paths[solver].errors[: len(path.errors)]
            assert path.errors == pytest.approx(expected, rel=1e-3, abs=free.truth_error)


def test_divergence_is_shown(
    posterior: MeanFieldGaussian, rows: Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(solvers, "PAPER_VI", replace(solvers.PAPER_VI, scale=10.0))
    comparison = solvers.compare_network("mlp", NETWORK, posterior, rows, 20, SEED)
    for table in comparison.tables:
        path = table.paths["neumann-paper"]
        assert table.paper_step > 2
        assert path.diverged
        assert path.errors[-1] > 1
        assert path.error_at(20) is None
        assert not table.paths["neumann-safe"].diverged
    assert all(file.stat().st_size > 10_000 for file in solvers_figure.draw(comparison, tmp_path))


def test_a_path_tells_when_it_gets_there() -> None:
    path = solvers.SolverPath("cg", [1, 2, 3], [0.5, 0.1, 0.01], [2.0, 0.5, 0.05])
    assert (path.error_at(2), path.error_at(3), path.error_at(9), path.error_at(0)) == (0.1, 0.01, 0.01, None)
    assert (path.products_to(0.1), path.products_to(0.09), path.products_to(0.001)) == (2, 3, None)
    assert (path.products_to_residual(0.5), path.products_to_residual(0.01)) == (2, None)
    assert replace(path, diverged=True).error_at(9) is None


def test_the_largest_curvature_from_below() -> None:
    curvature = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    start = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    few, many = (solvers.largest_curvature(lambda v: curvature * v, start, products) for products in (1, 8))
    assert few == pytest.approx(float((curvature * start).norm() / start.norm()))
    assert few < many <= 100 * (1 + 1e-12)
    assert many == pytest.approx(100, rel=1e-6)


def test_a_comparison_survives_json_and_is_drawn(comparison: solvers.SolverComparison, tmp_path: Path) -> None:
    again = solvers.SolverComparison.from_dict(json.loads(json.dumps(asdict(comparison))))
    assert again == comparison
    assert (again.n, again.sampled_rows, again.forgotten) == (700, 636, 64)
    png, svg = solvers_figure.draw(again, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text(encoding="utf-8")


def test_what_cannot_be_compared_is_invalid_input(posterior: MeanFieldGaussian, rows: Tensor) -> None:
    with pytest.raises(InvalidInput, match="products"):
        solvers.compare_network("mlp", NETWORK, posterior, rows, solvers.POWER_PRODUCTS, SEED)
    with pytest.raises(InvalidInput, match="rows of class 0"):
        solvers.compare_network("mlp", NETWORK, posterior, rows[:100], PRODUCTS, SEED)
    with pytest.raises(InvalidInput, match="this network has 61706 parameters"):
        solvers.compare_lenet(posterior, torch.zeros(70, 1025), PRODUCTS, SEED)


@pytest.mark.slow
def test_the_perceptron_is_solved_to_a_thousandth_within_forty_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "MOST_STORED", 0)  # what is looked at are residuals, which need no matrix
    stages: list[tuple[str, float]] = []
    comparison = solvers.compare_mlp(40, on_progress=lambda stage, fraction: stages.append((stage, fraction)))
    assert comparison.parameters == 2410
    for table in comparison.tables:
        within = table.paths["ours"].products_to_residual(1e-3)
        assert within is not None
        assert within <= 40
        assert table.paths["neumann-paper"].products_to_residual(1e-3) is None
    assert ("training", 1.0) in stages
    assert stages[-1] == ("damping 10: ours", 1.0)
