"""The figure of the demo: the mixture before, after forgetting, and retrained without the forgotten people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import ml

mpl.use("agg")
PANELS = ("before", "after forgetting", "retrained without them")


def draw(path: Path, points: torch.Tensor, forgotten: torch.Tensor, posteriors: Sequence[ml.MeanFieldGaussian]) -> Path:
    """Draw three panels. The old centres stay visible as crosses, to show what moved."""
    retained = torch.ones(len(points), dtype=torch.bool)
    retained[forgotten] = False
    figure = Figure(figsize=(13.5, 4.8), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for axis, title, posterior in zip(axes, PANELS, posteriors, strict=True):
        visible = points if posterior is posteriors[0] else points[retained]
        axis.scatter(*visible.T, s=4, c=_nearest(visible, posterior), cmap="tab10", vmax=9, alpha=0.5, linewidths=0)
        if posterior is not posteriors[0]:
            axis.scatter(*points[forgotten].T, s=6, facecolors="none", edgecolors="0.6", linewidths=0.4)
            axis.plot(*posteriors[0].mean.T, "x", color="0.35", markersize=9, label="centre before")
        _mark_centres(axis, posterior)
        axis.set_title(title)
        axis.set_aspect("equal")
    axes[1].legend(loc="upper center", fontsize="small", framealpha=0.9)
    figure.savefig(path, dpi=130)
    return path


def _nearest(points: torch.Tensor, posterior: ml.MeanFieldGaussian) -> torch.Tensor:
    return torch.cdist(points, posterior.mean).argmin(dim=1)


def _mark_centres(axis: Axes, posterior: ml.MeanFieldGaussian) -> None:
    """Draw each centre with two posterior standard deviations, and the unit circle of its points."""
    for mean, std in zip(posterior.mean.tolist(), posterior.std.tolist(), strict=True):
        axis.add_patch(Circle((mean[0], mean[1]), 1.0, fill=False, color="black", linewidth=0.8, linestyle="--"))
        axis.errorbar(
            mean[0], mean[1], xerr=2 * std[0], yerr=2 * std[1], fmt="o", color="black", markersize=4, capsize=2
        )
