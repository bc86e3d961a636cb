"""`lethe paper`: tables and figures of the paper's experiments, with our method beside the paper's."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.datasets.digits import digits
from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.paper import bnn, bnn_figure, controls, gmm, gmm_figure
from lethe.progress import stages
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP

WAYS = {"nothing": "nothing done", "paper": "paper's method", "ours": "ours", "retrained": "retrained"}
NETWORK_WAYS = {
    "nothing": "nothing done",
    "paper": "paper's method",
    "shift": "shift",
    "descent": "shift and descent",
    "descent control": "control of descent",
    "reweight": "weights",
    "temper": "tempered",
    "temper control": "control of tempered",
    "retrained": "retrained",
    "again": "retrained again",
}


def run_gmm(folder: Path, removed: int, seed: int, console: Console) -> None:
    """Run the cases that `folder` lacks, then print the table and draw the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with stages() as report:
        comparisons = {}
        for case in gmm.CASES:
            result_file = folder / f"{case}-removed{removed}-seed{seed}.json"
            if not result_file.exists():
                comparison = gmm.compare(case, removed, seed, report(case))
                result_file.write_text(json.dumps(asdict(comparison), indent=2))
            comparisons[case] = gmm.Comparison.from_dict(json.loads(result_file.read_text()))
    console.print(_gmm_table(comparisons))
    for case, comparison in comparisons.items():
        if comparison.warning:
            console.print(f"[yellow]{case}[/yellow]: {comparison.warning}", highlight=False)
    for path in gmm_figure.draw(comparisons, seed, folder):
        console.print(f"Figure: {path}", highlight=False)


def run_bnn(folder: Path, plan: bnn.Plan, cases: Sequence[str], data: Path | None, console: Console) -> None:
    """Run the cases that `folder` lacks, then print the tables and draw the figure."""
    comparisons = {case: list[bnn.NetworkComparison]() for case in cases}
    for case in cases:
        bnn.method(case, plan)  # raises for an unknown case before hours of work
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a second thread saves a quarter of the time, but costs a multiple on a busy machine
    with stages() as report:
        scene = fashion_scene(data) if set(cases) <= set(bnn.CASES) else digits_scene()
        for case in cases:
            for seed in range(plan.seeds):
                for removed in plan.removed:
                    bar = report(f"{case}, {removed:,} removed, seed {seed}")
                    comparisons[case].append(bnn.compare(case, removed, seed, scene, plan, folder, bar))
    console.print(_error_table(comparisons))
    console.print(_effect_table(comparisons))
    console.print(_time_table(comparisons))
    for path in bnn_figure.draw(comparisons, folder):
        console.print(f"Figure: {path}", highlight=False)


def fashion_scene(folder: Path | None) -> bnn.Scene:
    return bnn.Scene(LeNet5(), fashion_mnist(True, folder), fashion_mnist(False, folder))


def digits_scene() -> bnn.Scene:
    train, test = digits()
    return bnn.Scene(MLP(dimensions=64, hidden=16, classes=10), train.float(), test.float())


def _error_table(comparisons: Mapping[str, Sequence[bnn.NetworkComparison]]) -> Table:
    table = Table(
        title="Error in %, and loss in nats per row on the forgotten set; mean over seeds, ± standard deviation"
    )
    for heading in ("case", "removed", "method", "forgotten", "loss", "retained", "test", "seconds", "not taken"):
        table.add_column(heading, justify="left" if heading in ("case", "method", "not taken") else "right")
    for case, removed, group in _group_by_size(comparisons):
        for name in group[0].ways:
            ways = [comparison.ways[name] for comparison in group]
            table.add_row(case, f"{removed:,}", _label(group, name), *_format_scores(ways))
        table.add_section()
    return table


def _format_scores(ways: Sequence[bnn.NetworkWay]) -> list[str]:
    scores = [way.score for way in ways if way.score is not None]
    if len(scores) < len(ways):
        return [*[""] * 5, next(way.refused for way in ways if way.refused is not None)]
    return [
        _format_mean([score.forgotten_error for score in scores], 1),
        _format_mean([score.forgotten_loss for score in scores], 3),
        _format_mean([score.retained_error for score in scores], 2),
        _format_mean([score.test_error for score in scores], 2),
        f"{statistics.mean(way.seconds for way in ways):.1f}",
    ]


def _effect_table(comparisons: Mapping[str, Sequence[bnn.NetworkComparison]]) -> Table:
    """Build the table of what was forgotten: differences to the control of each way."""
    table = Table(
        title="Forgotten: change against a control that takes the same steps with nothing removed. "
        "Training on: change of that control"
    )
    headings = ("case", "removed", "method", "error", "loss", "retained", "training on: loss", "retained", "nearer")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("case", "method") else "right")
    for case, removed, group in _group_by_size(comparisons):
        for name in group[0].ways:
            if name != "nothing" and not name.endswith(" control"):
                table.add_row(case, f"{removed:,}", _label(group, name), *_format_effects(group, name))
        table.add_section()
    return table


def _format_effects(group: Sequence[bnn.NetworkComparison], name: str) -> list[str]:
    effects = [effect for comparison in group if (effect := controls.effect(comparison, name)) is not None]
    drifts = [drift for comparison in group if (drift := controls.drift(comparison, name)) is not None]
    if len(effects) < len(group):
        return ["refused"]
    return [
        _format_mean([effect.forgotten_error for effect in effects], 1),
        _format_mean([effect.forgotten_loss for effect in effects], 3),
        _format_mean([effect.retained_error for effect in effects], 2),
        _format_mean([drift.forgotten_loss for drift in drifts], 3),
        _format_mean([drift.retained_error for drift in drifts], 2),
        "" if name in ("paper", "retrained", "again") else _format_nearer(group, name),
    ]


def _format_nearer(group: Sequence[bnn.NetworkComparison], name: str) -> str:
    """Format in how many comparisons a way is nearer to retraining than the paper's, by the loss on the forgotten."""
    return f"{sum(controls.is_nearer_than_paper(comparison, name) is True for comparison in group)} of {len(group)}"


def _label(group: Sequence[bnn.NetworkComparison], name: str) -> str:
    return NETWORK_WAYS[name] + (" (ours)" if name == group[0].ours else "")


def _time_table(comparisons: Mapping[str, Sequence[bnn.NetworkComparison]]) -> Table:
    """Build the paper's table of times, with our method beside the paper's."""
    table = Table(title="Seconds, and how many times faster than retraining")
    for heading in ("case", "removed", "retraining", "paper's method", "faster", "ours", "faster", "certificate"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, removed, group in _group_by_size(comparisons):
        retrained, paper, ours = (_mean(group, _seconds(name)) for name in ("retrained", "paper", group[0].ours))
        table.add_row(
            case,
            f"{removed:,}",
            f"{retrained:.1f}",
            f"{paper:.1f}",
            f"{retrained / paper:.2f}",
            f"{ours:.1f}",
            f"{retrained / ours:.2f}",
            _format_certificate(group),
        )
    return table


def _format_certificate(group: Sequence[bnn.NetworkComparison]) -> str:
    """Format the seconds of a certificate, and the estimate if one was issued."""
    certificates = [comparison.certified for comparison in group if comparison.certified is not None]
    if not certificates:
        return "none"
    seconds = statistics.mean(certificate.seconds for certificate in certificates)
    estimates = [certificate.epsilon for certificate in certificates if certificate.epsilon is not None]
    issued = len(estimates) == len(certificates)
    return f"{seconds:.1f} ({max(estimates):.3g} nats)" if issued else f"{seconds:.1f} (refused)"


def _group_by_size(
    comparisons: Mapping[str, Sequence[bnn.NetworkComparison]],
) -> list[tuple[str, int, list[bnn.NetworkComparison]]]:
    """Group the seeds of each case and size."""
    return [
        (case, removed, [comparison for comparison in seeds if comparison.removed == removed])
        for case, seeds in comparisons.items()
        for removed in sorted({comparison.removed for comparison in seeds})
    ]


def _seconds(name: str) -> Callable[[bnn.NetworkComparison], float]:
    return lambda comparison: comparison.ways[name].seconds


def _mean(group: Sequence[bnn.NetworkComparison], value: Callable[[bnn.NetworkComparison], float]) -> float:
    return statistics.mean(value(comparison) for comparison in group)


def _format_mean(values: Sequence[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def _gmm_table(comparisons: Mapping[str, gmm.Comparison]) -> Table:
    table = Table(title="KL in nats to the retained posterior, distance of the parameters, seconds")
    for heading in ("case", "method", "KL", "distance", "seconds"):
        table.add_column(heading, justify="left" if heading in ("case", "method") else "right")
    for case, comparison in comparisons.items():
        for name, label in WAYS.items():
            way = comparison.ways[name]
            table.add_row(case, label, f"{way.kl:.3g}", f"{way.distance:.3g}", f"{way.seconds:.4f}")
        table.add_section()
    return table
