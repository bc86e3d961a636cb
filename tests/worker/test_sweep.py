from __future__ import annotations

import threading
import uuid
from datetime import timedelta

from sqlalchemy import update

from service.settings import Settings
from service.store.batches import claim
from service.store.database import Database
from service.store.tables import Batch, DeletionTarget, now
from tests import samples
from worker.sweep import run_sweep, sweep_once
from worker.workshop import Workshop


class Bell:
    """Stands for the broker: notes who was rung."""

    def __init__(self) -> None:
        self.rung: list[uuid.UUID] = []

    def ring(self, model_id: uuid.UUID, delay_seconds: float = 0.0) -> bool:
        self.rung.append(model_id)
        return True


def rings(workshop: Workshop) -> list[uuid.UUID]:
    bell = Bell()
    sweep_once(workshop.database, workshop.artifacts, bell)  # type: ignore[arg-type]
    return bell.rung


def test_rings_for_waiting_work_that_nobody_does(settings: Settings, database: Database, workshop: Workshop) -> None:
    model_id = samples.register_sample(settings, database)
    assert rings(workshop) == []
    samples.ask(settings, database, 1)
    samples.ask(settings, database, 2)
    assert rings(workshop) == [model_id]
    with database.writing() as session:
        held = claim(session, model_id, "worker", workshop.terms)
    assert held is not None
    samples.ask(settings, database, 3)
    assert rings(workshop) == []  # its worker is alive
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert rings(workshop) == [model_id]


def test_leaves_a_deletion_in_backoff_alone(settings: Settings, database: Database, workshop: Workshop) -> None:
    samples.register_sample(settings, database)
    samples.ask(settings, database, 1)
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() + timedelta(minutes=1)))
    assert rings(workshop) == []


def test_runs_until_stopped(settings: Settings) -> None:
    stop = threading.Event()
    sweep = threading.Thread(target=run_sweep, args=(settings, stop))
    sweep.start()
    stop.set()
    sweep.join(timeout=10)
    assert not sweep.is_alive()
