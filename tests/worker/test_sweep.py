from __future__ import annotations

import base64
import json
import threading
import uuid
from datetime import timedelta

import pytest
import redis
from sqlalchemy import update

from service.logs import configure_logging
from service.settings import Settings
from service.store.batches import claim
from service.store.database import Database
from service.store.doorbell import CHECK_TASK, FORGET_TASK, Doorbell
from service.store.summaries import page
from service.store.tables import Batch, DeletionTarget, now
from tests import samples
from worker.check import check_current
from worker.sweep import run_sweep, sweep_once
from worker.workshop import Workshop

QUEUE = "celery"


def rings(settings: Settings, workshop: Workshop, task: str = FORGET_TASK) -> list[uuid.UUID]:
    """For which models one sweep leaves a message of this kind in the broker."""
    doorbell = Doorbell(settings.broker)
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete(QUEUE)
        sweep_once(workshop.database, workshop.artifacts, doorbell)
        messages = [json.loads(message) for message in client.lrange(QUEUE, 0, -1)]
    doorbell.close()
    bodies = [
        json.loads(base64.b64decode(message["body"])) for message in messages if message["headers"]["task"] == task
    ]
    return [uuid.UUID(arguments[0]) for arguments, *_ in bodies]


def test_rings_for_waiting_work_that_nobody_does(settings: Settings, database: Database, workshop: Workshop) -> None:
    model_id = samples.register_sample(settings, database)
    assert rings(settings, workshop) == []
    samples.ask(settings, database, 1)
    samples.ask(settings, database, 2)
    assert rings(settings, workshop) == [model_id]
    with database.writing() as session:
        held = claim(session, model_id, "worker", workshop.terms)
    assert held is not None
    samples.ask(settings, database, 3)
    assert rings(settings, workshop) == []  # its worker is alive
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert rings(settings, workshop) == [model_id]


def test_rings_for_versions_that_nobody_has_looked_at(
    settings: Settings, database: Database, workshop: Workshop
) -> None:
    model_id = samples.register_sample(settings, database)
    assert rings(settings, workshop, CHECK_TASK) == [model_id]
    check_current(workshop, model_id)
    assert rings(settings, workshop, CHECK_TASK) == []


def test_leaves_a_deletion_in_backoff_alone(settings: Settings, database: Database, workshop: Workshop) -> None:
    samples.register_sample(settings, database)
    samples.ask(settings, database, 1)
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() + timedelta(minutes=1)))
    assert rings(settings, workshop) == []


def test_sums_the_day_up_once_and_logs_it(
    settings: Settings, database: Database, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("INFO")
    doorbell = Doorbell(settings.broker)
    for _ in range(2):
        sweep_once(workshop.database, workshop.artifacts, doorbell)
    doorbell.close()
    with database.reading() as session:
        (summary,) = page(session, 5)
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "summary.daily" in line]
    assert line["day"] == summary.day.isoformat()
    assert line["gdpr"] == {"received": 0, "completed": 0, "failed": 0, "overdue": 0, "due_soon": 0}


def test_runs_until_stopped(settings: Settings) -> None:
    stop = threading.Event()
    sweep = threading.Thread(target=run_sweep, args=(settings, stop))
    sweep.start()
    stop.set()
    sweep.join(timeout=10)
    assert not sweep.is_alive()
