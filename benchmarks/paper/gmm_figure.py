"""Figure of the paper's first experiment: learned classes and moved centres for each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper.gmm import ROWS, Comparison, forgotten_rows
from ml.forgetting.retained import retained_rows
from ml.models.synthetic import synthetic_mixture

TITLES = {"gmm-vi": "Variational inference", "gmm-sgld": "SGLD", "gmm-sghmc": "SGHMC"}
MARKS = {"nothing": ("o", "black"), "paper": ("s", "tab:orange"), "ours": ("^", "tab:blue"), "retrained": ("*", "red")}
LABELS = {"nothing": "before", "paper": "paper's method", "ours": "ours", "retrained": "retrained (target)"}


def draw(comparisons: Mapping[str, Comparison], seed: int, folder: Path) -> list[Path]:
    """Draw two rows of panels with one column per method, as PNG and SVG."""
    figure = Figure(figsize=(4.6 * len(comparisons), 9.2), layout="constrained")
    panels = figure.subplots(2, len(comparisons), squeeze=False, sharex=True, sharey=True)
    data, labels = synthetic_mixture(ROWS, seed=seed)
    for (case, comparison), upper, lower in zip(comparisons.items(), panels[0], panels[1], strict=True):
        upper.set_title(f"{TITLES[case]}: trained on all")
        _points(upper, data, comparison)
        upper.plot(*zip(*comparison.ways["nothing"].centres, strict=True), "o", color="black")
        lower.set_title(f"{comparison.removed} forgotten")
        _points(lower, retained_rows(data, forgotten_rows(data, labels, comparison.removed)), comparison)
        for name, (mark, colour) in MARKS.items():
            centres = zip(*comparison.ways[name].centres, strict=True)
            lower.plot(*centres, mark, color=colour, label=LABELS[name], markersize=9, fillstyle="none")
    panels[1][0].legend(loc="upper center", fontsize="small")
    paths = [folder / f"gmm.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=110)
    return paths


def _points(axes: Axes, rows: torch.Tensor, comparison: Comparison) -> None:
    centres = torch.tensor(comparison.ways["nothing"].centres, dtype=rows.dtype)
    nearest = torch.cdist(rows, centres).argmin(1)
    axes.scatter(rows[:, 0], rows[:, 1], s=4, c=nearest, cmap="tab10", vmax=9, alpha=0.4, linewidths=0)
    axes.set_aspect("equal")
