"""Workers are killed inside their batches while deletions arrive over HTTP, on each database and artifact store."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest
from sqlalchemy import select

from service.store.states import BatchStatus
from service.store.tables import Batch
from tests import samples
from tests.faults.api_process import serve_api
from tests.faults.bench import Bench
from tests.faults.deletion_load import DeletionLoad, shared_populations
from tests.faults.elapsed_time import expire_lease, sweep_files
from tests.faults.invariants import Scenario, check, check_log
from tests.faults.lethe_up import open_client, register_all
from worker.forget import forget_pending

SEED = 8
MODELS, PEOPLE = 3, 600
KILLS = 60
LOAD_SECONDS = 200.0
"""Time over which the load is spread. The kills end sooner, and the load with them."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.mark.parametrize("storage", ["folder", "s3"], indirect=True)
def test_deletions_survive_kills_inside_batches(bench: Bench, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    models = register_all(bench.settings, bench.database, shared_populations(MODELS, PEOPLE, SEED))
    people = rng.sample(range(PEOPLE), PEOPLE // 2)
    first = {samples.request_deletion(bench.settings, bench.database, people[0]).deletion.id: people[:1]}
    boundaries = max(len(bench.workers.run_worker(model_id).boundaries) for model_id in models)
    with (
        serve_api(bench.settings, tmp_path / "api.log") as port,
        open_client(f"http://127.0.0.1:{port}", bench.database) as client,
    ):
        with DeletionLoad(client, people[1:], LOAD_SECONDS, SEED) as load:
            kills = _kill_workers(bench, list(models), boundaries, rng)
        deletions = {**first, **load.finish()}
    _drain(bench, models)
    circumstances = f"{kills['inside']} kills inside batches and {kills['after']} after, {len(deletions)} deletions"
    check(Scenario(bench.settings, bench.database, models, deletions, bench.bucket), f"{circumstances}, seed {SEED}")
    check_log(bench.settings, bench.database)
    print(circumstances)  # noqa: T201


def _kill_workers(bench: Bench, model_ids: list[uuid.UUID], boundaries: int, rng: random.Random) -> Counter[str]:
    """Kill workers at random boundaries after the claim; count those that held their batch, and those that did not."""
    kills: Counter[str] = Counter()
    while kills["inside"] < KILLS:
        model_id = rng.choice(model_ids)
        worker_exit = bench.workers.run_worker(model_id, die_at=rng.randrange(2, boundaries))
        if worker_exit.killed:
            kills["inside" if _has_running_batch(bench, model_id) else "after"] += 1
            expire_lease(bench.database, model_id)
    return kills


def _has_running_batch(bench: Bench, model_id: uuid.UUID) -> bool:
    running = select(Batch.id).where(Batch.model_id == model_id, Batch.status == BatchStatus.RUNNING)
    with bench.database.reading() as session:
        return session.scalar(running) is not None


def _drain(bench: Bench, model_ids: Collection[uuid.UUID]) -> None:
    for model_id in model_ids:
        expire_lease(bench.database, model_id)
        while forget_pending(bench.context, model_id):
            expire_lease(bench.database, model_id)
    sweep_files(bench.settings, bench.database)
