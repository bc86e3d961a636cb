"""`lethe bench sequence`: models for the sequence, its figure and its table."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

import ml
from benchmarks.certificates.sequence import Sequence, draw_anew, forget_in_sequence
from benchmarks.certificates.sequence_figure import draw
from benchmarks.datasets.digits import digits
from lethe.progress import stages
from ml.errors import InvalidInput
from ml.models import Model
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from vocabulary.references import Reference

_ROWS, _DIMENSIONS = 400, 5
_HIDDEN, _PRIOR_STD = 32, 0.15


def bench_sequence(
    family: str, people: int, floor: float, reference: Reference, seed: int, samples: Path | None, folder: Path
) -> Sequence:
    """Run the sequence, and write its steps as JSON and its figure to the folder."""
    torch.set_num_threads(1)
    model, rows = _build(family)
    started = time.process_time()
    posterior = SampleSet.from_bytes(samples.read_bytes()) if samples is not None else draw_anew(model, rows, seed)
    sampling_seconds = None if samples is not None else time.process_time() - started
    policy = ml.Policy(epsilon=10.0, level="estimated", rungs=("reweight",), reference=reference)
    with stages() as bar:
        steps = forget_in_sequence(model, posterior, rows, people, floor, policy, seed, bar(family))
    draws, parameters = posterior.samples.shape
    sequence = Sequence(family, len(rows), parameters, draws, reference, floor, sampling_seconds, steps)
    draw(sequence, folder / f"sequence-{family}.png")
    content = {**sequence.summary, "steps": asdict(sequence)["steps"]}
    (folder / f"sequence-{family}.json").write_text(json.dumps(content))
    return sequence


def show(sequence: Sequence) -> Table:
    table = Table(title=f"{sequence.family}: people forgotten one after another", show_header=False)
    for name, value in sequence.summary.items():
        table.add_row(name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value))
    return table


def _build(family: str) -> tuple[Model, Tensor]:
    if family == "mlp":
        return MLP(dimensions=64, hidden=_HIDDEN, classes=10, prior_std=_PRIOR_STD), digits()[0].float()
    if family == "logistic":
        return ml.build("logistic-regression", {"dimensions": _DIMENSIONS, "prior_std": 1.0}), _logistic_rows()
    raise InvalidInput(f"family {family!r} is not known: pass logistic or mlp")


def _logistic_rows() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(_ROWS, _DIMENSIONS, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(features.sum(1))
    labels = (torch.rand(_ROWS, generator=generator, dtype=torch.float64) < chances).double()
    return torch.cat([features, labels.unsqueeze(1)], 1)
