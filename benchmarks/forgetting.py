"""Benchmarks that people can repeat: a figure beside a named baseline, measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.paper import bnn, gmm, mlp
from benchmarks.paper.network_methods import Shelf
from benchmarks.paper.report import fashion_scene
from benchmarks.solvers import comparison as solvers
from benchmarks.solvers import figure as solvers_figure
from lethe.progress import OnProgress, stages
from ml.errors import InvalidInput
from ml.models.lenet import LeNet5

CASES = (*gmm.CASES, "mlp-vi", *bnn.CASES)


@dataclass(frozen=True)
class Networks:
    """Where trained networks are kept, and how long they are trained."""

    folder: Path
    plan: bnn.Plan
    data: Path | None


def bench_forget(cases: Sequence[str], removed: int | None, networks: Networks) -> list[dict[str, Any]]:
    """Ours, the paper's way and retraining, for each case; by default the group that suits the model."""
    for case in cases:
        if case not in CASES:
            raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(CASES)}")
    torch.set_num_threads(1)  # a second thread does not help small models, and on a busy machine it hurts
    with stages() as report:
        return [_measured(case, removed, networks, report(case)) for case in cases]


def _measured(case: str, removed: int | None, networks: Networks, on_progress: OnProgress) -> dict[str, Any]:
    if case in gmm.CASES:
        return _row(gmm.compare(case, removed or 800, on_progress=on_progress))
    if case == "mlp-vi":
        return _row(mlp.compare(removed or 64, on_progress=on_progress))
    networks.folder.mkdir(parents=True, exist_ok=True)
    scene = fashion_scene(networks.data)
    return _network_row(bnn.compare(case, removed or 64, 0, scene, networks.plan, networks.folder, on_progress))


def _network_row(found: bnn.NetworkComparison) -> dict[str, Any]:
    """Without divergences: a network that was trained again lies in another basin, and none is defined to it."""
    ours, paper, retrained = (found.ways[name].seconds for name in ("ours", "paper", "retrained"))
    return {
        "case": found.case,
        "removed": found.removed,
        "n": found.n,
        "kl_ours": None,
        "kl_paper": None,
        "kl_nothing": None,
        "kl_retrained": None,
        "seconds_ours": ours,
        "seconds_paper": paper,
        "seconds_retrain": retrained,
        "speedup_vs_paper": paper / ours,
        "speedup_vs_retrain": retrained / ours,
        "residual_ours": found.residual_ours,
        "residual_paper": found.residual_paper,
    }


def _row(found: gmm.Comparison) -> dict[str, Any]:
    ours, paper, retrained = (found.ways[name] for name in ("ours", "paper", "retrained"))
    return {
        "case": found.case,
        "removed": found.removed,
        "n": found.n,
        "kl_ours": ours.kl,
        "kl_paper": paper.kl,
        "kl_nothing": found.ways["nothing"].kl,
        "kl_retrained": retrained.kl,
        "seconds_ours": ours.seconds,
        "seconds_paper": paper.seconds,
        "seconds_retrain": retrained.seconds,
        "speedup_vs_paper": paper.seconds / ours.seconds,
        "speedup_vs_retrain": retrained.seconds / ours.seconds,
        "residual_ours": found.residual_ours,
        "residual_paper": found.residual_paper,
    }


def show(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="KL in nats to the model that never saw the rows")
    for heading in ("case", "removed", "way", "KL", "seconds"):
        table.add_column(heading, justify="right" if heading in ("KL", "seconds") else "left")
    for row in rows:
        removed = f"{row['removed']} of {row['n']}"
        table.add_row(row["case"], removed, "nothing done", _divergence(row["kl_nothing"]), "")
        table.add_row("", "", "paper's way", _divergence(row["kl_paper"]), f"{row['seconds_paper']:.4f}")
        table.add_row("", "", "ours", _divergence(row["kl_ours"]), f"{row['seconds_ours']:.4f}")
        table.add_row("", "", "retrained", _divergence(row["kl_retrained"]), f"{row['seconds_retrain']:.4f}")
        table.add_section()
    return table


def _divergence(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.2e}"


SHOWN_PRODUCTS = (1, 2, 5, 10, 20, 40, 60)
SOLVER_NAMES = {
    "neumann-paper": "Neumann, the paper's c",
    "neumann-safe": "Neumann, c = 1/λ_max",
    "cg": "conjugate gradients",
    "ours": "ours: preconditioned by 1/σ²",
}


def bench_solve(cases: Sequence[str], products: int, networks: Networks) -> list[solvers.SolverComparison]:
    """Every solver on the system of a trained posterior; a figure for each case in the networks' folder."""
    for case in cases:
        if case not in solvers.CASES:
            raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(solvers.CASES)}")
    networks.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    found = []
    with stages() as report:
        for case in cases:
            found.append(_solved(case, products, networks, report(case)))
            solvers_figure.draw(found[-1], networks.folder)
    return found


def _solved(case: str, products: int, networks: Networks, on_progress: OnProgress) -> solvers.SolverComparison:
    if case == "mlp":
        return solvers.compare_mlp(products, on_progress=on_progress)
    data = fashion_mnist(True, networks.data)
    how = bnn.method("lenet-vi", networks.plan)
    shelf = Shelf(how, "lenet-vi", networks.folder)
    posterior, _, _ = shelf.trained(LeNet5(), data, 0, 1, lambda done: on_progress("training", done))
    return solvers.compare_lenet(posterior, data, products, on_progress=on_progress)


def show_solvers(found: solvers.SolverComparison) -> list[Table]:
    tables = []
    for one in found.tables:
        table = Table(title=f"{found.case}, damping {one.damping:g}: error in the energy norm, by products")
        table.add_column("solver")
        for count in SHOWN_PRODUCTS:
            table.add_column(str(count), justify="right")
        for name, label in SOLVER_NAMES.items():
            table.add_row(label, *(_error(one.paths[name], count) for count in SHOWN_PRODUCTS))
        tables.append(table)
    return tables


def _error(path: solvers.SolverPath, products: int) -> str:
    error = path.error_at(products)
    if error is not None:
        return f"{error:.3g}"
    return "diverged" if path.diverged and path.products and products > path.products[-1] else ""
