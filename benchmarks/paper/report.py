"""`lethe paper`: the paper's experiments, with its table and figures, and ours beside it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.paper import bnn, bnn_figure, gmm, gmm_figure
from lethe.progress import stages
from ml.models.lenet import LeNet5

WAYS = {"nothing": "nothing done", "paper": "paper's way", "ours": "ours", "retrained": "retrained"}


def run_gmm(folder: Path, removed: int, seed: int, console: Console) -> None:
    """Run what `folder` does not hold yet, then print the table and draw the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with stages() as report:
        found = {}
        for case in gmm.CASES:
            kept = folder / f"{case}-removed{removed}-seed{seed}.json"
            if not kept.exists():
                comparison = gmm.compare(case, removed, seed, report(case))
                kept.write_text(json.dumps(asdict(comparison), indent=2))
            found[case] = gmm.Comparison.from_dict(json.loads(kept.read_text()))
    console.print(_table(found))
    for case, comparison in found.items():
        if comparison.warning:
            console.print(f"[yellow]{case}[/yellow]: {comparison.warning}", highlight=False)
    for path in gmm_figure.draw(found, seed, folder):
        console.print(f"Figure: {path}", highlight=False)


def run_bnn(folder: Path, plan: bnn.Plan, cases: Sequence[str], data: Path | None, console: Console) -> None:
    """Run what `folder` does not hold yet, then print the tables and draw the figure."""
    found = {case: list[bnn.NetworkComparison]() for case in cases}
    for case in cases:
        bnn.method(case, plan)  # an unknown name is refused before the first hour of work
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a second one saves a quarter of the time, and on a busy machine costs many times more
    with stages() as report:
        scene = fashion_scene(data)
        for case in cases:
            for seed in range(plan.seeds):
                for removed in plan.removed:
                    bar = report(f"{case}, {removed:,} removed, seed {seed}")
                    found[case].append(bnn.compare(case, removed, seed, scene, plan, folder, bar))
    console.print(_errors(found))
    console.print(_times(found))
    for path in bnn_figure.draw(found, folder):
        console.print(f"Figure: {path}", highlight=False)


def fashion_scene(folder: Path | None) -> bnn.Scene:
    return bnn.Scene(LeNet5(), fashion_mnist(True, folder), fashion_mnist(False, folder))


def _errors(found: Mapping[str, Sequence[bnn.NetworkComparison]]) -> Table:
    table = Table(
        title="Error in %, and loss in nats a row on the forgotten set; mean over seeds, ± standard deviation"
    )
    for heading in ("method", "removed", "way", "forgotten", "loss", "retained", "test"):
        table.add_column(heading, justify="left" if heading in ("method", "way") else "right")
    labels = {**WAYS, "again": "retrained again"}
    for case, removed, group in _groups(found):
        for name in bnn.WAYS:
            scores = [one.ways[name].score for one in group]
            table.add_row(
                case,
                f"{removed:,}",
                labels[name],
                _spread([score.forgotten_error for score in scores], 1),
                _spread([score.forgotten_loss for score in scores], 3),
                _spread([score.retained_error for score in scores], 2),
                _spread([score.test_error for score in scores], 2),
            )
        table.add_section()
    return table


def _times(found: Mapping[str, Sequence[bnn.NetworkComparison]]) -> Table:
    """The paper's table, ours beside it."""
    table = Table(title="Seconds, and how many times faster than retraining")
    for heading in ("method", "removed", "retraining", "paper's way", "faster", "ours", "faster", "certificate"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for case, removed, group in _groups(found):
        retrained, paper, ours = (_mean(group, _seconds(name)) for name in ("retrained", "paper", "ours"))
        table.add_row(
            case,
            f"{removed:,}",
            f"{retrained:.1f}",
            f"{paper:.1f}",
            f"{retrained / paper:.2f}",
            f"{ours:.1f}",
            f"{retrained / ours:.2f}",
            _certificate(group),
        )
    return table


def _certificate(group: Sequence[bnn.NetworkComparison]) -> str:
    """Seconds, and the estimate where there is one."""
    found = [one.certified for one in group if one.certified is not None]
    if not found:
        return "none"
    seconds = statistics.mean(one.seconds for one in found)
    estimates = [one.epsilon for one in found if one.epsilon is not None]
    return f"{seconds:.1f} ({max(estimates):.3g} nats)" if len(estimates) == len(found) else f"{seconds:.1f} (refused)"


def _groups(
    found: Mapping[str, Sequence[bnn.NetworkComparison]],
) -> list[tuple[str, int, list[bnn.NetworkComparison]]]:
    """What belongs together: the seeds of one method and size."""
    return [
        (case, removed, [one for one in comparisons if one.removed == removed])
        for case, comparisons in found.items()
        for removed in sorted({one.removed for one in comparisons})
    ]


def _seconds(name: str) -> Callable[[bnn.NetworkComparison], float]:
    return lambda one: one.ways[name].seconds


def _mean(group: Sequence[bnn.NetworkComparison], value: Callable[[bnn.NetworkComparison], float]) -> float:
    return statistics.mean(value(one) for one in group)


def _spread(values: Sequence[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def _table(found: Mapping[str, gmm.Comparison]) -> Table:
    table = Table(title="KL in nats to the retained posterior, distance of the parameters, seconds")
    for heading in ("method", "way", "KL", "distance", "seconds"):
        table.add_column(heading, justify="left" if heading in ("method", "way") else "right")
    for case, comparison in found.items():
        for name, label in WAYS.items():
            way = comparison.ways[name]
            table.add_row(case, label, f"{way.kl:.3g}", f"{way.distance:.3g}", f"{way.seconds:.4f}")
        table.add_section()
    return table
