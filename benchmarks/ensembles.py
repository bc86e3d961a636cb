"""`lethe bench shards`: what an ensemble of K members costs in accuracy, and what a deletion costs with it.

Every K reads every row equally often, so training all members costs the same. K = 1 is the single network on all rows:
its deletion is its retraining.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.datasets.digits import digits
from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.timing import timed
from lethe.progress import OnProgress, stages
from ml.errors import InvalidInput
from ml.inference.members import default_prior_share, predict, train_ensemble, train_member
from ml.inference.shards import assign_shards
from ml.ladder.ensemble import forget
from ml.ladder.policy import Policy
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble, Recipe

_POLICY = Policy(1e-6, "retrained")
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class Case:
    """A network, its rows, each of a person of its own, and the recipe but for the share of the prior."""

    name: str
    network: Network
    rows: Tensor
    test_rows: Tensor
    epochs: int
    batch_size: int
    learning_rate: float

    def recipe(self, shards: int) -> Recipe:
        return Recipe(self.epochs, self.batch_size, self.learning_rate, default_prior_share(shards))


def lenet_case(data: Path | None) -> Case:
    return Case("lenet", LeNet5(), fashion_mnist(True, data), fashion_mnist(False, data), 20, 64, 2e-3)


def mlp_case() -> Case:
    rows, test_rows = (part.float() for part in digits())
    return Case("mlp", MLP(64, 32, 10), rows, test_rows, 20, 32, 1e-2)


@dataclass(frozen=True)
class Shards:
    """Ensemble of so many members: errors on test rows in percent, processor seconds, iterations."""

    case: str
    shards: int
    test_error: float
    member_error: float
    seconds_training: float
    seconds_deletion: float
    iterations_training: int
    iterations_deletion: int


def bench_shards(case: str, shards: Sequence[int], folder: Path, data: Path | None) -> list[dict[str, Any]]:
    """Measure ensembles of these sizes. Finished ones are in `folder` and not measured again."""
    if case not in ("lenet", "mlp"):
        raise InvalidInput(f"unknown case {case!r}: choose lenet or mlp")
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    scene = lenet_case(data) if case == "lenet" else mlp_case()
    train_member(scene.network, scene.rows[:64], 0, scene.recipe(1))  # the first use of the libraries takes longer
    with stages() as report:
        rows = [_cached(scene, count, folder, report(f"{case}, {count} shards")) for count in shards]
    return [_with_ratios(row, rows) for row in rows]


def measure(case: Case, shards: int, on_progress: OnProgress) -> Shards:
    """Train an ensemble, and delete a person. Of a single network that is training it again, which is not run twice."""
    shard = assign_shards([str(row) for row in range(len(case.rows))], shards, key=b"lethe bench shards")
    recipe = case.recipe(shards)
    total = sum(recipe.iterations(int(count)) for count in torch.bincount(shard))
    training, ensemble = timed(
        lambda: train_ensemble(
            case.network, case.rows, shard, recipe, on_step=lambda step: on_progress("training", step / total)
        )
    )
    deletion, iterations = _delete(case, ensemble, on_progress) if shards > 1 else (training, total)
    singles = [_error(case, _alone(ensemble, k)) for k in range(shards)]
    return Shards(
        case.name,
        shards,
        _error(case, ensemble),
        sum(singles) / shards,
        training,
        deletion,
        total,
        iterations,
    )


def shards_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Ensembles: price in accuracy, cost of one person's deletion (processor time)")
    for column in (
        "shards",
        "test error %",
        "of one member %",
        "training s",
        "deletion s",
        "of the ensemble",
        "of one network",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        single = row["share_of_single"]
        table.add_row(
            str(row["shards"]),
            f"{row['test_error']:.2f}",
            f"{row['member_error']:.2f}",
            f"{row['seconds_training']:.1f}",
            f"{row['seconds_deletion']:.1f}",
            f"1/{1 / row['share_of_ensemble']:.1f}",
            "–" if single is None else f"1/{1 / single:.1f}",
        )
    return table


def _cached(case: Case, shards: int, folder: Path, on_progress: OnProgress) -> Shards:
    file = folder / f"shards-{case.name}-{shards}.json"
    if not file.exists():
        file.write_text(json.dumps(asdict(measure(case, shards, on_progress))))
    on_progress("done", 1.0)
    return Shards(**json.loads(file.read_text()))


def _with_ratios(row: Shards, rows: Sequence[Shards]) -> dict[str, Any]:
    single = next((other for other in rows if other.shards == 1), None)
    return {
        **asdict(row),
        "share_of_ensemble": row.seconds_deletion / row.seconds_training,
        "share_of_single": None if single is None else row.seconds_deletion / single.seconds_deletion,
    }


def _delete(case: Case, ensemble: Ensemble, on_progress: OnProgress) -> tuple[float, int]:
    """Delete the person of the first row; return processor seconds and iterations."""
    rows, forgotten = case.rows, torch.tensor([0])
    seconds, outcome = timed(lambda: forget(case.network, ensemble, rows, forgotten, _POLICY, on_progress))
    (member,) = outcome.certificate.constants.retrained
    return seconds, member.iterations


def _alone(ensemble: Ensemble, member: int) -> Ensemble:
    shard = torch.zeros(len(ensemble.shard), dtype=torch.int64)
    return Ensemble(ensemble.members[[member]], ensemble.seed[[member]], shard, ensemble.recipe)


def _error(case: Case, ensemble: Ensemble) -> float:
    """Return the share of wrong labels among the test rows, in percent."""
    wrong = [
        predict(case.network, ensemble, rows[:, :-1]).argmax(1) != rows[:, -1]
        for rows in torch.split(case.test_rows, _ROWS_AT_ONCE)
    ]
    return 100 * float(torch.cat(wrong).double().mean())
