"""`lethe bench audit`: runs the audit, prints its tables, and draws its figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table

from benchmarks.certificates.audit.costs import measure_costs
from benchmarks.certificates.audit.deletions import Deletion, audit_deletions
from benchmarks.certificates.audit.extended import has_mpmath
from benchmarks.certificates.audit.predictions import audit_predictions
from benchmarks.certificates.audit.sequences import audit_sequences
from benchmarks.certificates.audit.summary import (
    Summary,
    summarise_deletions,
    summarise_predictions,
    summarise_sequences,
    summarise_wrong_samples,
)
from benchmarks.certificates.audit.wrong_samples import audit_wrong_samples
from benchmarks.timing import timed
from lethe.progress import stages

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Plan:
    """Size of an audit: deletions, sequences of sample sets, wrong sets of each kind, and models for readiness."""

    trials: int
    samples: int
    wrong: int
    models: int
    seed: int


FULL = Plan(trials=11_000, samples=120, wrong=25, models=500, seed=1)
QUICK = Plan(trials=700, samples=12, wrong=3, models=60, seed=1)


def bench_audit(plan: Plan, folder: Path) -> Summary:
    """Run the audit, and write its figure and JSON to the folder."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with stages() as bar:
        seconds, (report, deletions) = timed(lambda: run(plan, bar))
    report = {**report, "seconds": seconds}
    draw(report, deletions, folder)
    (folder / "audit.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def run(plan: Plan, bar: Callable[[str], OnProgress]) -> tuple[Summary, list[Deletion]]:
    """Return the report and the single deletions."""
    deletions = audit_deletions(plan.trials, plan.seed, bar("proved certificates"))
    proved = summarise_deletions(deletions)
    samples = summarise_sequences(audit_sequences(plan.samples, plan.seed, bar("sample sets")))
    wrong = summarise_wrong_samples(audit_wrong_samples(plan.wrong, plan.seed, bar("wrong samples")))
    readiness = summarise_predictions(audit_predictions(plan.models, plan.seed, bar("readiness")))
    report = {
        "trials": proved["deletions"],
        "issued": proved["proved"],
        "violations": proved["violations"],
        "coverage": samples["coverage"],
        "published_above_policy": samples["published_above_policy"],
        "needless_refusals": proved["needless_refusals"],
        "false_alarms": wrong["false_alarms"],
        "wrong_samples_certified": wrong["certified"],
        "reference_checks": proved["reference_checks"],
        "seed": plan.seed,
        "checked_with_50_digits": has_mpmath(),
        "proved": proved,
        "sample_sets": samples,
        "wrong_samples": wrong,
        "readiness": readiness,
        "costs": measure_costs(plan.seed),
    }
    return report, deletions


def show(report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a report."""
    proved = report["proved"]
    return [
        _table(
            f"{report['issued']:,} proved certificates: {report['violations']} violations",
            {**proved["by_family"], **proved["by_data"], **proved["by_removal"]},
            ("proved", "violations", "needless_refusals", "median_ratio"),
        ),
        _table(
            "Sample sets by number of deletions",
            report["sample_sets"]["by_length"],
            ("issued", "coverage", "published_above_policy"),
        ),
        _table(
            "Wrong sample sets",
            report["wrong_samples"]["by_kind"],
            ("sets", "certified_share", "false_alarm_share"),
        ),
        _table(
            "Readiness against what is issued",
            report["readiness"]["by_family"],
            ("models", "agreement", "promised_but_refused", "issued_unpromised"),
        ),
        _table("Processor time of the checks and of a deletion", report["costs"], ("seconds", "deletion", "share")),
    ]


def draw(report: Mapping[str, Any], deletions: Sequence[Deletion], folder: Path) -> list[Path]:
    """Draw bound over truth by family, and coverage by number of deletions."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    families = list(report["proved"]["by_family"])
    left.boxplot([_ratios(deletions, name) for name in families], whis=(0, 95), showfliers=False)
    left.set_xticks(range(1, len(families) + 1), [name.split("-")[0] for name in families])
    left.set(yscale="log", ylabel="certified bound / true KL", title=f"{report['issued']:,} proved certificates")
    lengths = report["sample_sets"]["by_length"]
    right.bar(list(lengths), [group["coverage"] or 0.0 for group in lengths.values()])
    right.axhline(0.95, color="black", linewidth=0.8)
    right.set(ylim=(0.8, 1.0), xlabel="deletions", ylabel="intervals that hold the truth", title="sample sets")
    paths = [folder / f"audit.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=110)
    return paths


def _ratios(deletions: Sequence[Deletion], family: str) -> list[float]:
    """Return bound over truth of each deletion of the family whose truth has digits."""
    return [deletion.ratio for deletion in deletions if deletion.family == family and deletion.ratio is not None]


def _table(title: str, groups: Mapping[str, Mapping[str, Any]], headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for heading in headings:
        table.add_column(heading.replace("_", " "), justify="right")
    for name, counts in groups.items():
        table.add_row(name, *(_cell(heading, counts[heading]) for heading in headings))
    return table


def _cell(heading: str, value: float | None) -> str:
    if value is None:
        return ""
    if heading in ("coverage", "agreement") or heading.endswith("share"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
