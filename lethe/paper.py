"""`lethe paper`: the paper's experiments, with its table and figures, and ours beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lethe.progress import stages
from ml.experiments import gmm, gmm_figure

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
