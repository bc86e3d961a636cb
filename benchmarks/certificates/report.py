"""`lethe bench certify` and `coverage`: certificates beside the truth, which only a benchmark can afford."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.certificates import certify, certify_figure, coverage
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
    """For each family so many deletions; a figure and a file with every trial in the folder."""
    names = [_named(family) for family in families]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # a second thread does not help small models, and on a busy machine it hurts
    reports = []
    with stages() as bar:
        for name in names:
            report, found = certify.run(name, trials, seed, epsilon, bar(name))
            _keep(report, found, folder)
            certify_figure.draw(report, found, folder)
            reports.append(report)
    return reports


def bench_coverage(trials: int, seed: int) -> coverage.CoverageReport:
    torch.set_num_threads(1)
    with stages() as bar:
        return coverage.coverage(trials, seed, bar("sample sets"))


def show(reports: Sequence[certify.Report]) -> Table:
    table = Table(title="Certified bound over true KL, by share removed; and what was issued")
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


def _named(family: str) -> str:
    """The name that models are registered with; a short one will do."""
    name = _FULL_NAMES.get(family, family)
    if name not in certify.FAMILIES:
        raise InvalidInput(f"unknown family {family!r}: choose among {', '.join([*_FULL_NAMES, *certify.FAMILIES])}")
    return name


def _keep(report: certify.Report, found: Sequence[certify.Trial], folder: Path) -> None:
    trials = [{name: None if value == math.inf else value for name, value in asdict(one).items()} for one in found]
    path = folder / f"certify-{report.family}.json"
    path.write_text(json.dumps({**asdict(report), "points": trials}) + "\n")
