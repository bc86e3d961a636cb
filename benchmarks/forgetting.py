"""`lethe bench forget` and `lethe bench solve`: our method beside named baselines, measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.paper import bnn, gmm, mlp
from benchmarks.paper.network_methods import ModelCache
from benchmarks.paper.report import fashion_scene
from benchmarks.solvers import comparison as solvers
from benchmarks.solvers import figure as solvers_figure
from lethe.progress import OnProgress, stages
from ml.errors import InvalidInput
from ml.models.lenet import LeNet5

CASES = (*gmm.CASES, "mlp-vi", *bnn.CASES)


@dataclass(frozen=True)
class Networks:
    """Folder of trained networks, training plan, and folder of the data set."""

    folder: Path
    plan: bnn.Plan
    data: Path | None


def bench_forget(cases: Sequence[str], removed: int | None, networks: Networks) -> list[dict[str, Any]]:
    """Compare our method, the paper's and retraining. The default of `removed` depends on the model."""
    for case in cases:
        if case not in CASES:
            raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(CASES)}")
    torch.set_num_threads(1)  # a second thread does not help small models and hurts on a busy machine
    with stages() as report:
        return [_measure(case, removed, networks, report(case)) for case in cases]


def _measure(case: str, removed: int | None, networks: Networks, on_progress: OnProgress) -> dict[str, Any]:
    if case in gmm.CASES:
        return _row(gmm.compare(case, removed or 800, on_progress=on_progress))
    if case == "mlp-vi":
        return _row(mlp.compare(removed or 64, on_progress=on_progress))
    networks.folder.mkdir(parents=True, exist_ok=True)
    scene = fashion_scene(networks.data)
    return _network_row(bnn.compare(case, removed or 64, 0, scene, networks.plan, networks.folder, on_progress))


def _network_row(comparison: bnn.NetworkComparison) -> dict[str, Any]:
    """Row without divergences: a retrained network lies in another basin, so a divergence to it says nothing."""
    ours, paper, retrained = (comparison.ways[name].seconds for name in (comparison.ours, "paper", "retrained"))
    return {
        "case": comparison.case,
        "removed": comparison.removed,
        "n": comparison.n,
        "kl_ours": None,
        "kl_paper": None,
        "kl_nothing": None,
        "kl_retrained": None,
        "seconds_ours": ours,
        "seconds_paper": paper,
        "seconds_retrain": retrained,
        "speedup_vs_paper": paper / ours,
        "speedup_vs_retrain": retrained / ours,
        "residual_ours": comparison.residual_ours,
        "residual_paper": comparison.residual_paper,
    }


def _row(comparison: gmm.Comparison) -> dict[str, Any]:
    ours, paper, retrained = (comparison.ways[name] for name in ("ours", "paper", "retrained"))
    return {
        "case": comparison.case,
        "removed": comparison.removed,
        "n": comparison.n,
        "kl_ours": ours.kl,
        "kl_paper": paper.kl,
        "kl_nothing": comparison.ways["nothing"].kl,
        "kl_retrained": retrained.kl,
        "seconds_ours": ours.seconds,
        "seconds_paper": paper.seconds,
        "seconds_retrain": retrained.seconds,
        "speedup_vs_paper": paper.seconds / ours.seconds,
        "speedup_vs_retrain": retrained.seconds / ours.seconds,
        "residual_ours": comparison.residual_ours,
        "residual_paper": comparison.residual_paper,
    }


def forgetting_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="KL in nats to the model that never saw the rows")
    for heading in ("case", "removed", "method", "KL", "seconds"):
        table.add_column(heading, justify="right" if heading in ("KL", "seconds") else "left")
    for row in rows:
        removed = f"{row['removed']} of {row['n']}"
        table.add_row(row["case"], removed, "nothing done", _format_divergence(row["kl_nothing"]), "")
        table.add_row("", "", "paper's method", _format_divergence(row["kl_paper"]), f"{row['seconds_paper']:.4f}")
        table.add_row("", "", "ours", _format_divergence(row["kl_ours"]), f"{row['seconds_ours']:.4f}")
        table.add_row("", "", "retrained", _format_divergence(row["kl_retrained"]), f"{row['seconds_retrain']:.4f}")
        table.add_section()
    return table


def _format_divergence(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.2e}"


SHOWN_PRODUCTS = (1, 2, 5, 10, 20, 40, 60)
SOLVER_NAMES = {
    "neumann-paper": "Neumann, the paper's c",
    "neumann-safe": "Neumann, c = 1/λ_max",
    "cg": "conjugate gradients",
    "ours": "ours: preconditioned by 1/σ²",
}


def bench_solve(cases: Sequence[str], products: int, networks: Networks) -> list[solvers.SolverComparison]:
    """Compare all solvers on the system of a trained posterior, and draw one figure per case."""
    for case in cases:
        if case not in solvers.CASES:
            raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(solvers.CASES)}")
    networks.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    comparisons = []
    with stages() as report:
        for case in cases:
            comparison = _compare_solvers(case, products, networks, report(case))
            solvers_figure.draw(comparison, networks.folder)
            comparisons.append(comparison)
    return comparisons


def _compare_solvers(case: str, products: int, networks: Networks, on_progress: OnProgress) -> solvers.SolverComparison:
    if case == "mlp":
        return solvers.compare_mlp(products, on_progress=on_progress)
    data = fashion_mnist(True, networks.data)
    cache = ModelCache(bnn.method("lenet-vi", networks.plan), "lenet-vi", networks.folder)
    model = cache.train(LeNet5(), data, 0, 1, lambda fraction: on_progress("training", fraction))
    return solvers.compare_lenet(model.posterior, data, products, on_progress=on_progress)


def solver_tables(comparison: solvers.SolverComparison) -> list[Table]:
    tables = []
    for paths in comparison.tables:
        table = Table(title=f"{comparison.case}, damping {paths.damping:g}: error in the energy norm, by products")
        table.add_column("solver")
        for count in SHOWN_PRODUCTS:
            table.add_column(str(count), justify="right")
        for name, label in SOLVER_NAMES.items():
            table.add_row(label, *(_format_error(paths.paths[name], count) for count in SHOWN_PRODUCTS))
        tables.append(table)
    return tables


def _format_error(path: solvers.SolverPath, products: int) -> str:
    error = path.error_at(products)
    if error is not None:
        return f"{error:.3g}"
    return "diverged" if path.diverged and path.products and products > path.products[-1] else ""
