"""`lethe bench certify`, `coverage` and `sabotage`: certificates compared with the truth, and with nonsense."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.certificates import certify, certify_figure, coverage, coverage_any, sabotage
from benchmarks.certificates.coverage_summary import CoverageReport
from lethe.progress import stages
from ml.errors import InvalidInput

_FULL_NAMES = {
    "linear": "linear-regression",
    "logistic": "logistic-regression",
    "softmax": "softmax-regression",
    "mixture": "gaussian-mixture",
    "gmm": "gaussian-mixture",
}


def bench_certify(
    families: Sequence[str], trials: int, seed: int, epsilon: float, folder: Path
) -> list[certify.Report]:
    """Run deletions for each family, and write a figure and all trials to the folder."""
    names = [_full_name(family) for family in families]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a second thread does not help small models and hurts on a busy machine
    reports = []
    with stages() as bar:
        for name in names:
            report, outcomes = certify.run(name, trials, seed, epsilon, bar(name))
            _write_trials(report, outcomes, folder)
            certify_figure.draw(report, outcomes, folder)
            reports.append(report)
    return reports


def bench_coverage(trials: int, seed: int) -> CoverageReport:
    torch.set_num_threads(1)
    with stages() as bar:
        return coverage.coverage(trials, seed, bar("sample sets"))


def bench_coverage_any(trials: int, seed: int, quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    plan = replace(coverage_any.QUICK, seed=seed) if quick else coverage_any.Plan(trials=trials, seed=seed)
    with stages() as bar:
        return coverage_any.coverage_any(plan, bar("sample sets of any model"))


def bench_sabotage(sets: int, seed: int, quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    plan = replace(sabotage.QUICK, seed=seed) if quick else sabotage.Plan(sets=sets, seed=seed)
    with stages() as bar:
        return sabotage.bench_sabotage(plan, bar("nonsense sets"))


def show_coverage_any(content: dict[str, Any]) -> Table:
    table = Table(title="Certificates by weights alone that cover the truth")
    for heading in ("model", "trials", "issued", "covered", "coverage", "refused"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for model, report in {**content["models"], "all": content}.items():
        share = "" if report["coverage"] is None else f"{report['coverage']:.1%}"
        counts = (str(report[name]) for name in ("trials", "issued", "covered"))
        table.add_row(model, *counts, share, str(report["refused"]))
    return table


def show_sabotage(content: dict[str, Any]) -> Table:
    table = Table(title="Nonsense sets")
    for heading in ("kind", "reference", "asked", "certified"):
        table.add_column(heading, justify="right" if heading in ("asked", "certified") else "left")
    for row in content["kinds"]:
        table.add_row(row["kind"], row["reference"], str(row["asked"]), str(row["certified"]))
    return table


def show_coverage(report: CoverageReport) -> Table:
    table = Table(title="Intervals that cover the truth, by number of deletions and reading of the samples")
    for heading in ("deletions", "reading", "issued", "covered", "share", "above", "above epsilon"):
        table.add_column(heading, justify="left" if heading == "reading" else "right")
    for row in report.strata:
        counts = (str(row.issued), str(row.covered), f"{row.share:.1%}", str(row.above), str(row.above_epsilon))
        table.add_row(str(row.deletions), row.reading, *counts)
    return table


def show(reports: Sequence[certify.Report]) -> Table:
    table = Table(title="Certified bound over true KL by share removed, and levels issued")
    for heading in ("family", "trials", "violations", "≤ 1 %", "1 to 5 %", "95th %ile", "proved", "not retrained"):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    for row in reports:
        ratios = (row.median_ratio_1pct, row.median_ratio_5pct, row.p95_ratio)
        table.add_row(
            row.family,
            str(row.trials),
            f"[{'red' if row.violations else 'green'}]{row.violations}",
            *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
            str(row.issued["proved"]),
            f"{row.without_retraining:.1%}",
        )
    return table


def _full_name(family: str) -> str:
    """Return the name under which models are registered; accepts the short one."""
    name = _FULL_NAMES.get(family, family)
    if name not in certify.FAMILIES:
        raise InvalidInput(f"unknown family {family!r}: choose among {', '.join([*_FULL_NAMES, *certify.FAMILIES])}")
    return name


def _write_trials(report: certify.Report, outcomes: Sequence[certify.Trial], folder: Path) -> None:
    trials = [
        {name: None if value == math.inf else value for name, value in asdict(trial).items()} for trial in outcomes
    ]
    path = folder / f"certify-{report.family}.json"
    path.write_text(json.dumps({**asdict(report), "points": trials}) + "\n")
