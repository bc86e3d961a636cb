"""Figure of the paper's second experiment: errors over the number of forgotten rows, one panel per method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.paper.bnn import NetworkComparison

TITLES = {"vi": "Variational inference", "sgld": "SGLD", "sghmc": "SGHMC"}
SETS = {
    "forgotten_error": ("forgotten", "tab:red"),
    "retained_error": ("retained", "tab:blue"),
    "test_error": ("test", "tab:green"),
}
OURS = "ours"  # the default way for each size
LINES = {"nothing": (":", None), "paper": ("--", "s"), OURS: ("-", "^"), "retrained": ("none", "*")}
LABELS = {"nothing": "nothing done", "paper": "paper's method", OURS: "ours", "retrained": "retrained (target)"}


def draw(comparisons: Mapping[str, Sequence[NetworkComparison]], folder: Path) -> list[Path]:
    """Draw the mean over seeds with a band of one standard deviation, as PNG and SVG."""
    figure = Figure(figsize=(5.2 * len(comparisons), 4.8), layout="constrained")
    panels = figure.subplots(1, len(comparisons), squeeze=False, sharey=True)[0]
    for panel, (case, seeds) in zip(panels, comparisons.items(), strict=True):
        panel.set_title(TITLES[case.partition("-")[2]])
        panel.set_xlabel("rows forgotten")
        for error, (name, colour) in SETS.items():
            for way, (line, mark) in LINES.items():
                label = f"{name}, {LABELS[way]}"
                style = {"color": colour, "linestyle": line, "marker": mark, "label": label}
                _curve(panel, seeds, way, error, style)
    panels[0].set_ylabel("error, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    paths = [folder / f"bnn.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=110)
    return paths


def _curve(
    panel: Axes, comparisons: Sequence[NetworkComparison], way: str, error: str, style: dict[str, str | None]
) -> None:
    sizes = sorted({comparison.removed for comparison in comparisons})
    values = [[_error(c, way, error) for c in comparisons if c.removed == size] for size in sizes]
    centre = [statistics.mean(over_seeds) for over_seeds in values]
    spread = [statistics.pstdev(over_seeds) for over_seeds in values]
    panel.plot(sizes, centre, markersize=6, fillstyle="none", **style)  # type: ignore[arg-type]
    low, high = zip(*((c - s, c + s) for c, s in zip(centre, spread, strict=True)), strict=True)
    panel.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _error(comparison: NetworkComparison, way: str, error: str) -> float:
    return float(getattr(comparison.ways[comparison.ours if way == OURS else way].score, error))
