"""Figure of the solver comparison: error in the energy norm over products, one panel per damping."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.solvers.comparison import SolverComparison, SolverTable

TITLES = {"mlp": "MLP on digits", "lenet": "LeNet-5 on Fashion-MNIST"}
LINES = {
    "neumann-paper": ("Neumann, the paper's c", "tab:orange"),
    "neumann-safe": ("Neumann, 1/λ_max", "tab:green"),
    "cg": ("conjugate gradients", "black"),
    "ours": ("ours: preconditioned by 1/σ²", "tab:blue"),
}
GOAL = 0.05
HIGHEST = 10.0
LOWEST = 1e-8


def draw(comparison: SolverComparison, folder: Path) -> list[Path]:
    """Draw the figure as PNG and SVG."""
    count = len(comparison.tables)
    figure = Figure(figsize=(5.6 * count, 4.6), layout="constrained")
    figure.suptitle(f"{TITLES[comparison.case]}: {comparison.parameters:,} parameters")
    panels = figure.subplots(1, count, squeeze=False, sharex=True, sharey=True)[0]
    for panel, table in zip(panels, comparison.tables, strict=True):
        _panel(panel, table)
    panels[0].set_ylim(top=HIGHEST)  # last: setting one limit stops autoscaling of the other
    panels[0].set_ylabel("error in the energy norm")
    panels[0].legend(loc="lower left", fontsize="small")
    paths = [folder / f"solve-{comparison.case}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=110)
    return paths


def _panel(panel: Axes, table: SolverTable) -> None:
    panel.set_title(f"damping τ = {table.damping:g}")
    panel.set_xlabel("products with A")
    panel.set_yscale("log")
    panel.axhline(1.0, color="grey", linewidth=0.8)
    panel.axhline(GOAL, color="grey", linewidth=0.8, linestyle=":")
    for solver, path in table.paths.items():
        label, colour = LINES[solver]
        # Clipped at the error of x*: below it nothing is known.
        shown = [max(error, LOWEST, table.truth_error) for error in path.errors]
        panel.plot(path.products, shown, color=colour, label=label + (", diverges" if path.diverged else ""))
        if path.diverged:
            panel.plot(path.products[-1], min(shown[-1], HIGHEST), "x", color=colour, clip_on=False)
