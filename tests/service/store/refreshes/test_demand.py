from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.batches.parts import add_parts
from service.store.database import Database
from service.store.refreshes.demand import UNSERVED, devices_in_demand, is_in_demand
from service.store.states import Device
from service.store.tables import Batch, BatchPart, DeletionTarget, Model, now
from tests import samples


def demanded(database: Database, waiting: timedelta = timedelta()) -> set[Device]:
    with database.reading() as session:
        return set(devices_in_demand(session, waiting))


def test_due_deletions_that_no_batch_holds_up_demand_their_device(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    assert demanded(database) == set()
    samples.request_deletion(settings, database, 1)
    assert demanded(database) == {Device.CPU}
    assert demanded(database, UNSERVED) == set()  # a worker may be about to claim it
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() - 2 * UNSERVED))
    assert demanded(database, UNSERVED) == {Device.CPU}
    with database.writing() as session:
        claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3))
    samples.request_deletion(settings, database, 2)
    assert demanded(database) == set()  # it waits for its own model's batch, which no other worker could speed up
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert demanded(database) == {Device.CPU}


def test_deletions_for_a_gpu_demand_a_gpu(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    with database.writing() as session:
        session.execute(update(Model).values(device=Device.CUDA))
    samples.request_deletion(settings, database, 1)
    assert demanded(database) == {Device.CUDA}


def test_free_parts_of_a_batch_demand_its_device(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        batch = claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3))
        assert batch is not None
        add_parts(session, batch.batch_id, [0])
    assert demanded(database) == {Device.CPU}
    assert demanded(database, UNSERVED) == set()
    with database.writing() as session:
        session.execute(update(Batch).values(started_at=now() - 2 * UNSERVED))
    assert demanded(database, UNSERVED) == {Device.CPU}
    with database.writing() as session:
        session.execute(update(BatchPart).values(lease_expires_at=now() + timedelta(minutes=1)))
    assert demanded(database) == set()


@pytest.mark.parametrize(
    ("device", "needed", "expected"),
    [
        (Device.CPU, {Device.CPU}, True),
        (Device.CUDA, {Device.CPU}, True),
        (Device.CUDA, {Device.CUDA}, True),
        (Device.CPU, {Device.CUDA}, False),
        (Device.CPU, set(), False),
    ],
)
def test_a_worker_without_a_gpu_cannot_serve_what_needs_one(
    device: Device, needed: set[Device], expected: bool
) -> None:
    assert is_in_demand(device, needed) is expected
