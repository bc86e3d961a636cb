"""Benchmarks that people can repeat: a figure beside a named baseline, measured in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from rich.table import Table

import ml

SEED = 0
REPEATS = 5
EPSILON = 1e-6

T = TypeVar("T")


def bench_gaussian_mixture(removed: int) -> dict[str, Any]:
    """Forget `removed` of 2,000 points, and retrain without them from the same start to the same tolerance."""
    torch.set_num_threads(1)  # a second thread does not help data this small, and a busy machine makes it hurt
    points, _ = ml.synthetic_mixture(2000, seed=SEED)
    family = ml.build("gaussian-mixture", {"components": 4, "dimensions": 2, "prior_std": 1.0})
    start = family.initial(points, SEED)
    trained = ml.train(family, points, start).posterior
    forgotten = torch.randperm(len(points), generator=torch.Generator().manual_seed(SEED))[:removed]
    kept = torch.ones(len(points), dtype=torch.bool)
    kept[forgotten] = False
    seconds_retrain, retrained = _timed(lambda: ml.train(family, points[kept], start).posterior)
    seconds_ours, outcome = _timed(lambda: ml.forget(family, trained, points, forgotten, EPSILON))
    return {
        "case": "gmm-vi",
        "removed": removed,
        "n": len(points),
        "kl_ours": outcome.posterior.kl(retrained),
        "kl_nothing": trained.kl(retrained),
        "bound_ours": outcome.certificate.epsilon,
        "seconds_ours": seconds_ours,
        "seconds_retrain": seconds_retrain,
        "speedup_vs_retrain": seconds_retrain / seconds_ours,
    }


def show(row: dict[str, Any]) -> Table:
    table = Table(title=f"{row['case']}: {row['removed']} of {row['n']} removed (median of {REPEATS})")
    table.add_column("")
    table.add_column("KL to retrained", justify="right")
    table.add_column("certified bound", justify="right")
    table.add_column("seconds", justify="right")
    table.add_row("ours", f"{row['kl_ours']:.2e}", f"{row['bound_ours']:.2e}", f"{row['seconds_ours']:.4f}")
    table.add_row("retrained (baseline)", "0", "", f"{row['seconds_retrain']:.4f}")
    table.add_row("nothing done", f"{row['kl_nothing']:.2e}", "", "0")
    table.caption = f"{row['speedup_vs_retrain']:.1f} times faster than retraining"
    return table


def _timed(action: Callable[[], T]) -> tuple[float, T]:
    """Median seconds over repeats, after one that warms up, and the last result."""
    result = action()
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = action()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken), result
