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
    table = Table(title="Forgetting: KL in nats to the model that never saw the rows, and seconds")
    for heading in ("case", "removed", "nothing", "paper", "ours", "retrained", "paper s", "ours s", "retrain s"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        kls = (f"{row[f'kl_{name}']:.2e}" for name in ("nothing", "paper", "ours", "retrained"))
        seconds = (f"{row[f'seconds_{name}']:.4f}" for name in ("paper", "ours", "retrain"))
        table.add_row(row["case"], f"{row['removed']} of {row['n']}", *kls, *seconds)
    return table
