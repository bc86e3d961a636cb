"""Error of four solvers of A x = g after each product with A.

    A = (n/b) G + 1/s² + τP        G the Gauss-Newton matrix of b sampled rows, s the prior's std, P = 1/σ² the
                                   precision of the posterior, τ the damping
    g = Σ_{z∈S'} ∇h(z)             over 64 rows to forget

Forgetting on networks solves this system. τ = 0 is the plain influence; the other τ is the start of its trust region.
The error is ‖x - x*‖_A / ‖x*‖_A. It is 1 for x = 0, so an error above 1 is worse than no answer.

x* is a Cholesky solution if A fits into memory, else the result of a long run of conjugate gradients. Its error is
bounded in both cases: A - D is positive semi-definite for the diagonal D = 1/s² + τP, so with r = g - A x*

    ‖x* - A⁻¹g‖_A = (rᵀA⁻¹r)^½ ≤ (rᵀD⁻¹r)^½
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from ml.baselines.paper_network import PAPER_VI
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.models.checks import check_count
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.numerics.gauss_newton import Product
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve, solve_conjugate_gradients, solve_neumann

CASES = ("mlp", "lenet")
SOLVERS = ("neumann-paper", "neumann-safe", "cg", "ours")
DAMPINGS = (0.0, DEFAULT_RECIPE.damping)
FORGOTTEN = 64
SAMPLED_ROWS = 2048
"""Rows sampled for G, or all retained rows if there are fewer."""
POWER_PRODUCTS = 5
"""Power iterations for λ_max of the safe c. Started at g, they are accurate to a few per cent."""
MOST_STORED = 5_000
"""Largest number of parameters for which A is stored."""
TRUTH_TOLERANCE = 1e-6
TRUTH_PRODUCTS = 400

MLP_TRAINING = replace(SAFE_BNN, iterations=2_000, decay_every=500)

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class SolverPath:
    """Errors ‖x - x*‖_A / ‖x*‖_A and residuals ‖g - Ax‖/‖g‖ after products[i] products with A.

    Products of the measurement itself do not count.
    """

    solver: str
    products: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)
    diverged: bool = False
    """True if the solver diverged after the last of `products`."""

    def error_at(self, products: int) -> float | None:
        """Return None before the first product and after divergence. A converged solver keeps its last error."""
        converged = bool(self.products) and products > self.products[-1] and not self.diverged
        return self.errors[-1] if converged else dict(zip(self.products, self.errors, strict=True)).get(products)

    def products_to(self, error: float) -> int | None:
        """Return the products needed to reach this error, or None."""
        return next((k for k, e in zip(self.products, self.errors, strict=True) if e <= error), None)

    def products_to_residual(self, residual: float) -> int | None:
        return next((k for k, r in zip(self.products, self.residuals, strict=True) if r <= residual), None)


@dataclass(frozen=True)
class SolverTable:
    damping: float
    truth: str
    truth_error: float
    """Upper bound on the error of x*, relative to ‖x*‖_A."""
    largest_curvature: float
    """Estimate of λ_max by POWER_PRODUCTS iterations. Times the paper's c it is `paper_step`, which must be below 2."""
    paper_step: float
    paths: dict[str, SolverPath]


@dataclass(frozen=True)
class SolverComparison:
    case: str
    parameters: int
    n: int
    sampled_rows: int
    forgotten: int
    tables: list[SolverTable]

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> SolverComparison:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**stored, "tables": [_table_from_dict(table) for table in stored["tables"]]})


def _table_from_dict(stored: dict[str, Any]) -> SolverTable:
    return SolverTable(**{**stored, "paths": {name: SolverPath(**path) for name, path in stored["paths"].items()}})


def compare_mlp(products: int = 60, seed: int = 1, on_progress: OnProgress | None = None) -> SolverComparison:
    """Train a perceptron on the digits, which takes seconds, then compare the solvers."""
    network, data, report = MLP(64, 32, 10), digits()[0], on_progress or (lambda _stage, _fraction: None)
    generator, total = torch.Generator().manual_seed(seed), MLP_TRAINING.iterations

    def on_step(iteration: int, _energy: float) -> None:
        report("training", iteration / total)

    posterior = train_network(network, data, network.initial(seed), MLP_TRAINING, generator, on_step).posterior
    return compare_network("mlp", network, posterior, data, products, seed, on_progress)


def compare_lenet(
    posterior: MeanFieldGaussian,
    data: Tensor,
    products: int = 60,
    seed: int = 1,
    on_progress: OnProgress | None = None,
) -> SolverComparison:
    return compare_network("lenet", LeNet5(), posterior, data, products, seed, on_progress)


def compare_network(
    case: str,
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    products: int,
    seed: int,
    on_progress: OnProgress | None = None,
) -> SolverComparison:
    """Compare all solvers on the system of one posterior, with one table per damping. The seed samples the rows."""
    check_count("products", products, minimum=POWER_PRODUCTS + 1)
    network.check_data(data)
    if posterior.mean.shape != (network.parameter_count,):
        raise InvalidInput(
            f"posterior has shape {tuple(posterior.mean.shape)}: this network has {network.parameter_count} parameters"
        )
    forgotten, retained = _split_rows(data)
    order = torch.randperm(len(retained), generator=torch.Generator().manual_seed(seed))
    sampled = retained[order[:SAMPLED_ROWS]]
    energy = NetworkEnergy(network, data, frozen_draws(posterior, DEFAULT_RECIPE.draws, seed))
    curvature = energy.curvature(sampled, len(retained) / len(sampled))
    gradient = energy.misfit_gradient(torch.zeros_like(posterior.mean), forgotten)
    matrix = _matrix(curvature, gradient, on_progress) if len(gradient) <= MOST_STORED else None
    plain = _System(curvature, matrix, gradient, posterior.std**-2, network.prior_std**-2, len(retained))
    tables = [_table(replace(plain, damping=damping), products, on_progress) for damping in DAMPINGS]
    return SolverComparison(case, network.parameter_count, len(data), len(sampled), len(forgotten), tables)


@dataclass(frozen=True, eq=False)
class _System:
    curvature: Product
    """v ↦ ((n/b) G + 1/s²) v"""
    matrix: Tensor | None
    """The same matrix if it fits into memory."""
    vector: Tensor
    precision: Tensor
    prior: float
    n: int
    damping: float = 0.0

    def product(self, vector: Tensor) -> Tensor:
        product = self.curvature(vector) if self.matrix is None else self.matrix @ vector
        return product + self.damping * self.precision * vector

    @property
    def lower_bound(self) -> Tensor:
        """Diagonal D with A - D positive semi-definite."""
        return self.prior + self.damping * self.precision


@dataclass(frozen=True, eq=False)
class _Truth:
    x: Tensor
    image: Tensor  # A x
    solver: str

    @property
    def size(self) -> float:
        """‖x*‖_A."""
        return math.sqrt(float(self.x.dot(self.image)))

    def error(self, system: _System) -> float:
        residual = system.vector - self.image
        return math.sqrt(float((residual.square() / system.lower_bound).sum())) / self.size


def _table(system: _System, products: int, on_progress: OnProgress | None) -> SolverTable:
    report = on_progress or (lambda _stage, _fraction: None)
    report(f"damping {system.damping:g}: the truth", 0.0)
    truth = _truth(system)
    largest = largest_curvature(system.product, system.vector)
    step = PAPER_VI.scale / system.n
    paths = {}
    for count, solver in enumerate(SOLVERS, 1):
        paths[solver] = _path(solver, system, truth, products, step if solver == "neumann-paper" else 1 / largest)
        report(f"damping {system.damping:g}: {solver}", count / len(SOLVERS))
    return SolverTable(system.damping, truth.solver, truth.error(system), largest, step * largest, paths)


def _truth(system: _System) -> _Truth:
    """Return x*. The long run is preconditioned by D.

    D⁻¹A is I plus a matrix of the rank of G, so all directions outside the rows share one eigenvalue. With P that holds
    only under damping: on LeNet-5 without damping, 400 products bound the error by 0.24 with P and by 0.003 with D.
    """
    if system.matrix is not None:
        solution = solve(system.matrix + torch.diag(system.damping * system.precision), system.vector)
    else:
        solution = solve_conjugate_gradients(
            system.product, system.vector, TRUTH_TOLERANCE, TRUTH_PRODUCTS, system.lower_bound.expand_as(system.vector)
        )
    return _Truth(solution.x, system.product(solution.x), solution.solver)


def largest_curvature(product: Product, start: Tensor, products: int = POWER_PRODUCTS) -> float:
    """Return a lower estimate of λ_max by power iteration."""
    v, size = start, float(start.norm())
    for _ in range(products):
        v = product(v / size)
        size = float(v.norm())
    return size


def _path(solver: str, system: _System, truth: _Truth, products: int, scale: float) -> SolverPath:
    path = SolverPath(solver)
    spent = POWER_PRODUCTS if solver == "neumann-safe" else 0
    vector_norm = float(system.vector.norm())

    def record(x: Tensor) -> None:
        gap = x - truth.x
        image = system.product(gap)
        path.products.append(spent + len(path.products) + 1)
        path.errors.append(math.sqrt(max(0.0, float(gap.dot(image)))) / truth.size)
        path.residuals.append(float((system.vector - truth.image - image).norm()) / vector_norm)

    if solver in ("cg", "ours"):
        diagonal = system.precision if solver == "ours" else None
        # A tolerance so small that only `products` or rounding ends the run.
        solve_conjugate_gradients(system.product, system.vector, 1e-15, products, diagonal, record)
        return path
    try:
        solve_neumann(system.product, system.vector, products - spent, scale, record)
    except NumericalFailure:
        return replace(path, diverged=True)
    return path


def _split_rows(data: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the first rows of class 0, which are forgotten, and of all other rows."""
    is_forgotten = torch.zeros(len(data), dtype=torch.bool, device=data.device)
    is_forgotten[torch.nonzero(data[:, -1] == 0).flatten()[:FORGOTTEN]] = True
    if int(is_forgotten.sum()) < FORGOTTEN or bool(is_forgotten.all()):
        raise InvalidInput(f"data needs {FORGOTTEN} rows of class 0 to forget, and other rows: pass more rows")
    return torch.nonzero(is_forgotten).flatten(), torch.nonzero(~is_forgotten).flatten()


def _matrix(product: Product, like: Tensor, on_progress: OnProgress | None) -> Tensor:
    matrix = like.new_zeros(len(like), len(like))
    for column, unit in enumerate(torch.eye(len(like), dtype=like.dtype, device=like.device)):
        matrix[column] = product(unit)
        if on_progress is not None:
            on_progress("storing the matrix", (column + 1) / len(like))
    return (matrix + matrix.T) / 2
