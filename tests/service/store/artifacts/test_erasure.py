from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store.artifacts.erasure import schedule_erasure
from service.store.clock import current_time
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.tables import Artifact, Version
from tests import samples

HOUR = timedelta(hours=1)
RETAINED = "f" * 64


@pytest.fixture
def model_id(settings: Settings, database: Database) -> uuid.UUID:
    return samples.register_sample(settings, database)


def add_file(session: Session, model_id: uuid.UUID, digit: str, kind: str, **times: timedelta) -> str:
    """Add the row of a file; times are given from now."""
    timestamp = current_time(session)
    columns = {name: timestamp + time for name, time in times.items()}
    session.add(Artifact(model_id=model_id, digest=digit * 64, kind=kind, size=1, **columns))
    return digit * 64


def supersede(session: Session, model_id: uuid.UUID, posterior: str) -> None:
    session.add(
        Version(
            model_id=model_id,
            number=0,
            posterior_digest=posterior,
            dataset_digest="e" * 64,
            record_count=50,
            superseded_at=current_time(session),
        )
    )
    session.flush()


def test_every_file_but_the_retained_is_scheduled(database: Database, model_id: uuid.UUID) -> None:
    with database.writing() as session:
        before = current_version(session, model_id)
        supersede(session, model_id, add_file(session, model_id, "1", "posterior", destroy_at=HOUR / 2))
        leftover = add_file(session, model_id, "2", "dataset", destroy_at=HOUR)
        add_file(session, model_id, "f", "dataset", destroy_at=HOUR)
        started = current_time(session)
        facts = schedule_erasure(session, before, {RETAINED}, started + HOUR)
        times = {file.digest: file.at - started for file in facts.scheduled}
    second = timedelta(seconds=1)
    assert times.keys() == {before.posterior_digest, before.dataset_digest, "1" * 64, leftover}
    assert times[before.posterior_digest] == HOUR
    assert HOUR / 2 - second < times["1" * 64] <= HOUR / 2  # as an earlier publication scheduled it
    assert times[before.dataset_digest] < second
    assert times[leftover] < second
    assert [file.digest for file in facts.scheduled] == sorted(times)
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, before.dataset_digest)).destroy_at - started < second


def test_what_was_destroyed_since_the_version_before_is_listed(database: Database, model_id: uuid.UUID) -> None:
    with database.writing() as session:
        before = current_version(session, model_id)
        add_file(session, model_id, "1", "dataset", destroyed_at=-HOUR)
        since = add_file(session, model_id, "2", "posterior", destroyed_at=timedelta())
        facts = schedule_erasure(session, before, {before.posterior_digest, before.dataset_digest}, before.created_at)
    assert [(file.digest, file.kind) for file in facts.destroyed] == [(since, "posterior")]
    assert facts.scheduled == []
