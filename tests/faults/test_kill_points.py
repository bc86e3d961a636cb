"""A worker killed at every commit boundary and around every rename, again and again: nothing is lost or done twice.

Seeded: how many deletions share the batch, whom they name, whether others wait or arrive meanwhile, and whether the
worker that takes over is killed as well.
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
from tests.faults.aftermath import clear_away, let_lease_run_out
from tests.faults.forging import Forge, forging
from tests.faults.invariants import World, check, check_log
from tests.faults.population import draw, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PEOPLE, ROWS_EACH = 12, 2
TIMES = 20
SEED = 6
KNOWN = {"commit": 7, "replace": 2, "unlink": 2}
"""Of one batch: claim, progress, two files written ahead, publication, two destroyed; each file named and unnamed."""
MOST_BATCHES = 6


@dataclass(frozen=True)
class Bench:
    """What the trials of one database share."""

    settings: Settings
    database: Database
    context: WorkerContext
    forge: Forge


@pytest.fixture
def bench(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Bench]:
    # A beat of the lease would be a boundary more, at a moment of its own: let it come rarely.
    patient = settings.model_copy(update={"lease_seconds": 30.0})
    context = WorkerContext.open(patient)
    with forging(patient, tmp_path / "forge.log") as forge:
        yield Bench(patient, database, context, forge)
    context.database.close()


def test_a_worker_killed_at_any_boundary_loses_nothing(bench: Bench) -> None:
    trials = count(1)
    names = _boundaries(bench, next(trials))
    for boundary, name in enumerate(names):
        for number in range(TIMES):
            seed = SEED * 1_000_000 + boundary * 1_000 + number
            circumstances = f"death {name} (boundary {boundary} of {len(names)}), seed {seed}"
            _trial(bench, next(trials), boundary, circumstances, seed)
    check_log(bench.settings, bench.database)


def _boundaries(bench: Bench, trial: int) -> list[str]:
    """Those of the shortest batch there is, which every batch has."""
    world = _world(bench, trial)
    (model_id,) = world.models
    people = _people(trial)
    asked = {samples.request_deletion(bench.settings, bench.database, people[0]).deletion.id: people[:1]}
    ended = bench.forge.work(model_id)
    assert ended.exit_code == 0
    for name, least in KNOWN.items():
        for side in ("before", "after"):
            assert ended.passed.count(f"{side} {name}") >= least, ended.passed
    clear_away(bench.settings, bench.database, [model_id])
    check(World(bench.settings, bench.database, world.models, asked), "no fault at all")
    return list(ended.passed)


def _trial(bench: Bench, trial: int, boundary: int, circumstances: str, seed: int) -> None:
    chance = random.Random(seed)
    world = _world(bench, trial)
    (model_id,) = world.models
    waiting = chance.sample(_people(trial), 8)
    asked: dict[uuid.UUID, tuple[int, ...]] = {}

    def ask(size: int) -> uuid.UUID:
        people = tuple(waiting.pop() for _ in range(size))
        deletion_id = samples.request_deletion(bench.settings, bench.database, *people).deletion.id
        asked[deletion_id] = people
        return deletion_id

    for _ in range(chance.randint(1, 4)):
        ask(1)
    if chance.random() < 0.5:
        _hold_back(bench, ask(chance.randint(1, 2)))
    ended = bench.forge.work(model_id, die_at=boundary)
    assert ended.killed, f"the worker ended by itself with {ended.exit_code}, expected: {circumstances}"
    if chance.random() < 0.5:
        ask(1)  # arrives while the dead worker's lease still stands
    let_lease_run_out(bench.database, model_id)
    if chance.random() < 0.25:
        bench.forge.work(model_id, die_at=chance.randrange(boundary + 1))
        let_lease_run_out(bench.database, model_id)
    _finish(bench, model_id)
    clear_away(bench.settings, bench.database, [model_id])
    check(World(bench.settings, bench.database, world.models, asked), circumstances)


def _people(trial: int) -> list[int]:
    """Of their own for each trial: a person of two models would be forgotten in both."""
    return list(range(trial * PEOPLE, (trial + 1) * PEOPLE))


def _world(bench: Bench, trial: int) -> World:
    population = draw(_people(trial), ROWS_EACH, seed=trial)
    model_id = register_population(bench.settings, bench.database, population)
    return World(bench.settings, bench.database, {model_id: population}, {})


def _hold_back(bench: Bench, deletion_id: uuid.UUID) -> None:
    """As after a failure: not in this batch, and in the next one."""
    with bench.database.writing() as session:
        waiting = update(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
        session.execute(waiting.values(not_before=now() + timedelta(hours=1)))


def _finish(bench: Bench, model_id: uuid.UUID) -> None:
    for _ in range(MOST_BATCHES):
        if not forget_pending(bench.context, model_id):
            return
    raise AssertionError(f"still work to do after {MOST_BATCHES} batches")
