"""Models take turns, however many deletions and doorbells one of them has."""

from __future__ import annotations

import base64
import json
import time
import uuid
from dataclasses import replace

import pytest
import redis
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.batches.doorbell import FORGET_TASK, QUEUES
from service.store.database import Database
from service.store.deletions.views import NamedRecord
from service.store.states import Device
from service.store.tables import Batch, Deletion, Model, Version
from tests import samples
from worker.context import WorkerContext
from worker.forget import forget_pending, serve_doorbell
from worker.sweep import sweep_once


def serve_one(queue: redis.Redis, context: WorkerContext) -> bool:
    """Serve the oldest doorbell, as a worker does. Return False if there is none."""
    message = queue.rpop(QUEUES[Device.CPU])
    if message is None:
        return False
    task = json.loads(message)
    if task["headers"]["task"] == FORGET_TASK:
        (model_id, turn), *_ = json.loads(base64.b64decode(task["body"]))
        serve_doorbell(context, uuid.UUID(model_id), turn)
    return True


def batches_of(database: Database) -> dict[uuid.UUID, int]:
    with database.reading() as session:
        return dict(session.execute(select(Batch.model_id, func.count()).group_by(Batch.model_id)).all())


def test_a_busy_model_starves_no_other(
    settings: Settings, database: Database, context: WorkerContext, queue: redis.Redis
) -> None:
    limited = replace(context, settings=settings.model_copy(update={"batch_most_deletions": 5}))
    busy, quiet = (samples.register_sample(settings, database) for _ in range(2))
    with database.writing() as session:
        session.execute(update(Version).values(readiness={}))  # no readiness checks
    for record in range(30):
        samples.request_deletion(settings, database, records=[NamedRecord(busy, record)])
    for _ in range(5):
        sweep_once(database, context.artifacts, context.doorbell)  # each rings: no worker has answered yet
    assert serve_one(queue, limited)
    samples.request_deletion(settings, database, records=[NamedRecord(quiet, 1)])
    context.doorbell.ring(quiet)
    while quiet not in batches_of(database):
        assert serve_one(queue, limited)
        sweep_once(database, context.artifacts, context.doorbell)
    assert batches_of(database) == {busy: 2, quiet: 1}
    while serve_one(queue, limited):
        pass
    assert batches_of(database) == {busy: 6, quiet: 1}  # one per doorbell, without a sweep
    with database.reading() as session:
        assert set(session.scalars(select(Deletion.status))) == {"completed"}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_model_that_another_transaction_holds_is_left_to_a_later_doorbell(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """As while a batch is published, or if its worker was stopped: other models are served in the meantime."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        session.execute(select(Model.id).where(Model.id == model_id).with_for_update())
        started = time.monotonic()
        assert forget_pending(context, model_id) is False
        assert time.monotonic() - started < 5
    assert forget_pending(context, model_id) is True
