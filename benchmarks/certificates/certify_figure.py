"""Figure of the certificate benchmark: every bound over the divergence it bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.certificates.certify import LEAST_KL, Report, Trial
from benchmarks.certificates.certify_scenes import Kind

KINDS: dict[Kind, tuple[str, str]] = {
    "uniform": ("rows at random", "tab:blue"),
    "clustered": ("nearest neighbours", "tab:orange"),
    "whole": ("a whole cluster and more", "tab:red"),
    "influential": ("the most influential", "tab:purple"),
    "repeated": ("one after another", "tab:green"),
}


def draw(report: Report, trials: Sequence[Trial], folder: Path) -> list[Path]:
    """Draw the figure as PNG and SVG. Trials without a ratio do not fit logarithmic axes; the title counts them."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    panel = figure.subplots()
    panel.set_title(
        f"{report.family}: {report.trials:,} deletions, {report.violations} violations\n"
        f"{report.trials - report.ratios} not drawn: retrained, refused, or KL below {LEAST_KL:g}",
        fontsize="medium",
    )
    drawn = [trial for trial in trials if trial.ratio is not None]
    for kind, (label, colour) in KINDS.items():
        of_kind = [trial for trial in drawn if trial.kind == kind]
        kl, bound = [trial.kl for trial in of_kind], [trial.epsilon for trial in of_kind]
        panel.scatter(kl, bound, s=12, color=colour, alpha=0.6, linewidths=0, label=label)
    panel.axline((report.epsilon, report.epsilon), (report.epsilon / 10, report.epsilon / 10), color="black", lw=0.8)
    panel.axhline(report.epsilon, color="grey", linewidth=0.8, linestyle=":", label=f"policy: {report.epsilon:g}")
    panel.set(xscale="log", yscale="log", xlabel="true KL, nats (converged retraining)", ylabel="certified bound, nats")
    panel.legend(loc="upper left", fontsize="small")
    paths = [folder / f"certify-{report.family}.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=110)
    return paths
