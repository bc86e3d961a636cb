"""A worker killed at every commit boundary and around every rename: nothing is lost or done twice.

The seed determines how many deletions share the batch, their people, whether others wait or arrive meanwhile, and
whether the next worker is killed as well.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.database import Database
from service.store.tables import DeletionTarget, now
from tests import samples
from tests.faults.elapsed_time import expire_lease, sweep_files
from tests.faults.fork_client import ForkClient, run_fork_server
from tests.faults.invariants import Scenario, check, check_log
from tests.faults.population import draw_population, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PEOPLE, ROWS_EACH = 12, 2
TRIALS_PER_BOUNDARY = 20
SEED = 6
MIN_BOUNDARIES = {"commit": 7, "replace": 2, "unlink": 2}
"""Of one batch: claim, progress, two files written, publication, two files destroyed."""
MAX_BATCHES = 6


@dataclass(frozen=True)
class Bench:
    """Resources shared by the trials on one database."""

    settings: Settings
    database: Database
    context: WorkerContext
    workers: ForkClient


@pytest.fixture
def bench(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Bench]:
    # A heartbeat would add a boundary at a random time: make it rare.
    slow_heartbeat = settings.model_copy(update={"lease_seconds": 30.0})
    context = WorkerContext.open(slow_heartbeat)
    with run_fork_server(slow_heartbeat, tmp_path / "workers.log") as workers:
        yield Bench(slow_heartbeat, database, context, workers)
    context.database.close()


def test_a_worker_killed_at_any_boundary_loses_nothing(bench: Bench) -> None:
    trials = count(1)
    names = _boundaries(bench, next(trials))
    for boundary, name in enumerate(names):
        for number in range(TRIALS_PER_BOUNDARY):
            seed = SEED * 1_000_000 + boundary * 1_000 + number
            circumstances = f"death {name} (boundary {boundary} of {len(names)}), seed {seed}"
            _trial(bench, next(trials), boundary, circumstances, seed)
    check_log(bench.settings, bench.database)


def _boundaries(bench: Bench, trial: int) -> list[str]:
    """Return the boundaries of the shortest batch; every batch has them."""
    scenario = _register(bench, trial)
    (model_id,) = scenario.models
    people = _people(trial)
    deletions = {samples.request_deletion(bench.settings, bench.database, people[0]).deletion.id: people[:1]}
    worker_exit = bench.workers.run_worker(model_id)
    assert worker_exit.exit_code == 0
    for name, minimum in MIN_BOUNDARIES.items():
        for side in ("before", "after"):
            assert worker_exit.boundaries.count(f"{side} {name}") >= minimum, worker_exit.boundaries
    sweep_files(bench.settings, bench.database)
    check(Scenario(bench.settings, bench.database, scenario.models, deletions), "no fault")
    return list(worker_exit.boundaries)


def _trial(bench: Bench, trial: int, boundary: int, circumstances: str, seed: int) -> None:
    rng = random.Random(seed)
    scenario = _register(bench, trial)
    (model_id,) = scenario.models
    remaining = rng.sample(_people(trial), 8)
    deletions: dict[uuid.UUID, tuple[int, ...]] = {}

    def request(size: int) -> uuid.UUID:
        people = tuple(remaining.pop() for _ in range(size))
        deletion_id = samples.request_deletion(bench.settings, bench.database, *people).deletion.id
        deletions[deletion_id] = people
        return deletion_id

    for _ in range(rng.randint(1, 4)):
        request(1)
    if rng.random() < 0.5:
        _postpone(bench, request(rng.randint(1, 2)))
    worker_exit = bench.workers.run_worker(model_id, die_at=boundary)
    assert worker_exit.killed, f"the worker exited with {worker_exit.exit_code}, expected: {circumstances}"
    if rng.random() < 0.5:
        request(1)  # arrives before the dead worker's lease has expired
    expire_lease(bench.database, model_id)
    if rng.random() < 0.25:
        bench.workers.run_worker(model_id, die_at=rng.randrange(boundary + 1))
        expire_lease(bench.database, model_id)
    _finish(bench, model_id)
    sweep_files(bench.settings, bench.database)
    check(Scenario(bench.settings, bench.database, scenario.models, deletions), circumstances)


def _people(trial: int) -> list[int]:
    """Return the people of a trial. Trials share none: a person in two models would be forgotten in both."""
    return list(range(trial * PEOPLE, (trial + 1) * PEOPLE))


def _register(bench: Bench, trial: int) -> Scenario:
    population = draw_population(_people(trial), ROWS_EACH, seed=trial)
    model_id = register_population(bench.settings, bench.database, population)
    return Scenario(bench.settings, bench.database, {model_id: population}, {})


def _postpone(bench: Bench, deletion_id: uuid.UUID) -> None:
    """Postpone a deletion as after a failure: it is not in this batch, but in the next."""
    with bench.database.writing() as session:
        targets = update(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
        session.execute(targets.values(not_before=now() + timedelta(hours=1)))


def _finish(bench: Bench, model_id: uuid.UUID) -> None:
    for _ in range(MAX_BATCHES):
        if not forget_pending(bench.context, model_id):
            return
    raise AssertionError(f"deletions are still pending after {MAX_BATCHES} batches")
