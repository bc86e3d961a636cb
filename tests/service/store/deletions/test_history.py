from __future__ import annotations

import uuid

import pytest
from sqlalchemy import func, select

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.deletions import history
from service.store.deletions.history import History, find_history
from service.store.tables import AuditEntry
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


def fail(database: Database, model_id: uuid.UUID) -> None:
    with database.writing() as session:
        claim = claim_batch(session, model_id, "worker", TERMS)
        assert claim is not None
        fail_batch(session, claim.batch_id, "disk full", permanent=True, max_attempts=3)


def read(database: Database, deletion_id: uuid.UUID) -> History:
    with database.reading() as session:
        return find_history(session, deletion_id)


def test_all_batches_of_a_deletion_are_in_its_history(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    first, second = (samples.request_deletion(settings, database, person).deletion.id for person in (1, 2))
    fail(database, model_id)
    fail(database, model_id)  # in a smaller batch, of the first deletion alone
    actions = [event.action for event in read(database, first).events]
    assert actions.count("batch.claimed") == 2
    assert actions[0] == "deletion.received"
    assert [event.action for event in read(database, second).events].count("batch.claimed") == 1


def test_other_deletions_of_the_batch_are_not_named(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    first, second = (samples.request_deletion(settings, database, person).deletion.id for person in (1, 2))
    fail(database, model_id)
    assert str(second) not in str(read(database, first))


@pytest.mark.parametrize(("person", "is_ended"), [(1, False), (999, True)])
def test_a_deletion_ends_with_its_status(settings: Settings, database: Database, person: int, is_ended: bool) -> None:
    samples.register_sample(settings, database)
    assert read(database, samples.request_deletion(settings, database, person).deletion.id).ended is is_ended


def test_a_long_history_keeps_its_newest_events(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_EVENTS", 2)
    deletion_id = samples.request_deletion(settings, database, 999).deletion.id
    events = read(database, deletion_id).events
    with database.reading() as session:
        newest = session.scalar(select(func.max(AuditEntry.id)))
    assert [event.id for event in events] == [newest - 1, newest] if newest else False
