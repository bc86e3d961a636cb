from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch, end_batch, find_running
from service.store.batches.parts import (
    add_parts,
    finish_part,
    finished_parts,
    release_part,
    renew_part,
    take_part,
)
from service.store.batches.release import release_batches
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.states import BatchStatus
from service.store.tables import BatchPart, now
from tests import samples


@pytest.fixture
def batch_id(settings: Settings, database: Database) -> uuid.UUID:
    """A running batch with the parts 0 and 2."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        claim = claim_batch(session, model_id, "holder", ClaimTerms(lease_seconds=30.0, max_attempts=1))
    assert claim is not None
    with database.writing() as session:
        add_parts(session, claim.batch_id, [0, 2])
    return claim.batch_id


def take(database: Database, batch_id: uuid.UUID, worker: str = "helper") -> int | None:
    with database.writing() as session:
        return take_part(session, batch_id, worker, lease_seconds=30.0)


def expire(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(BatchPart).values(lease_expires_at=now() - timedelta(seconds=1)))


def test_each_part_is_taken_once(database: Database, batch_id: uuid.UUID) -> None:
    assert [take(database, batch_id) for _ in range(3)] == [0, 2, None]


def test_a_part_whose_worker_is_silent_is_taken_by_another(database: Database, batch_id: uuid.UUID) -> None:
    assert take(database, batch_id) == 0
    expire(database)
    assert take(database, batch_id, "another") == 0
    expire(database)
    with database.writing() as session:
        renew_part(session, batch_id, 0, lease_seconds=30.0)
    assert take(database, batch_id) == 2


def test_a_finished_part_is_listed_and_not_taken_again(database: Database, batch_id: uuid.UUID) -> None:
    assert take(database, batch_id) == 0
    with database.writing() as session:
        finish_part(session, batch_id, 0, "ab")
    expire(database)
    with database.reading() as session:
        assert finished_parts(session, batch_id) == {0: "ab"}
    assert take(database, batch_id) == 2


def test_a_part_is_free_once_its_worker_gives_it_up_or_stops(database: Database, batch_id: uuid.UUID) -> None:
    assert [take(database, batch_id), take(database, batch_id)] == [0, 2]
    with database.writing() as session:
        release_part(session, batch_id, 2)
    assert take(database, batch_id, "another") == 2
    with database.writing() as session:
        assert release_batches(session, "helper") == []
    assert [take(database, batch_id), take(database, batch_id)] == [0, None]


def test_parts_end_with_their_batch(database: Database, batch_id: uuid.UUID) -> None:
    with database.writing() as session:
        model_id = end_batch(session, batch_id, BatchStatus.FAILED).model_id
    with database.reading() as session:
        assert session.scalars(select(BatchPart)).all() == []
        assert find_running(session, model_id) is None
    with pytest.raises(LeaseLost):
        take(database, batch_id)
    for change in (
        lambda session: add_parts(session, batch_id, [1]),
        lambda session: renew_part(session, batch_id, 0, 30.0),
        lambda session: finish_part(session, batch_id, 0, "ab"),
    ):
        with pytest.raises(LeaseLost), database.writing() as session:
            change(session)
