from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import update

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.refreshes.due import models_to_refresh
from service.store.refreshes.lifecycle import fail_refresh, release_refresh
from service.store.tables import DeletionTarget, Refresh, now
from tests import samples
from tests.service.store.refreshes.worn import claim, worn_model


def due(database: Database, below: float = 0.8) -> list[uuid.UUID]:
    with database.reading() as session:
        return list(models_to_refresh(session, below))


def test_the_most_worn_comes_first_and_even_draws_do_not(settings: Settings, database: Database) -> None:
    worn = [worn_model(settings, database, effective) for effective in (500.0, 100.0, 300.0)]
    worn_model(settings, database, 640.0)
    samples.register_sample(settings, database)
    samples.register_worn_set(settings, database)  # not checked yet
    assert due(database) == [worn[1], worn[2], worn[0]]
    assert due(database, below=0.2) == [worn[1]]
    assert due(database, below=0.0) == []


def test_a_refresh_is_due_again_when_its_worker_falls_silent_or_releases_it(
    settings: Settings, database: Database
) -> None:
    model_id = worn_model(settings, database)
    first = claim(database, model_id)
    assert due(database) == []
    with database.writing() as session:
        session.execute(update(Refresh).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert due(database) == [model_id]
    with database.writing() as session:
        release_refresh(session, first)
    assert due(database, below=0.0) == [model_id]  # it has begun, or was requested


def test_deletions_come_first(settings: Settings, database: Database) -> None:
    model_id, other_id = worn_model(settings, database), worn_model(settings, database)
    samples.request_deletion(settings, database, 1, model_ids=[other_id])
    assert due(database) == []
    with database.writing() as session:
        claim_batch(session, other_id, "worker", ClaimTerms(30.0, 3))
    assert due(database) == [model_id]  # the other model has a worker, and is about to change
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() + timedelta(hours=1)))
    assert due(database) == [model_id]


def test_the_time_after_a_failure_doubles(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    for minutes in (10, 20, 40):
        with database.writing() as session:
            session.execute(update(Refresh).values(finished_at=now() - timedelta(days=2)))
        failed = claim(database, model_id)
        with database.writing() as session:
            fail_refresh(session, failed, "it broke")
        for age, expected in ((minutes - 1, []), (minutes + 1, [model_id])):
            with database.writing() as session:
                session.get_one(Refresh, failed.refresh_id).finished_at = now() - timedelta(minutes=age)
            assert due(database) == expected
