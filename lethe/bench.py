"""Benchmarks that people can repeat: a figure beside a named baseline, measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from lethe.progress import stages
from ml.experiments import gmm


def bench_forget(cases: Sequence[str], removed: int) -> list[dict[str, Any]]:
    """Ours, the paper's way and retraining, for each case."""
    torch.set_num_threads(1)  # a second thread does not help models this small, and on a busy machine it hurts
    with stages() as report:
        return [_row(gmm.compare(case, removed, on_progress=report(case))) for case in cases]


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
        table.add_row(row["case"], removed, "nothing done", f"{row['kl_nothing']:.2e}", "")
        table.add_row("", "", "paper's way", f"{row['kl_paper']:.2e}", f"{row['seconds_paper']:.4f}")
        table.add_row("", "", "ours", f"{row['kl_ours']:.2e}", f"{row['seconds_ours']:.4f}")
        table.add_row("", "", "retrained", f"{row['kl_retrained']:.2e}", f"{row['seconds_retrain']:.4f}")
        table.add_section()
    return table
