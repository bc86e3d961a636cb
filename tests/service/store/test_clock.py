"""Workers whose clocks differ by minutes agree on which leases are alive, since they share a database server."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store import audit, clock
from service.store.batches.due import models_to_ring
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, renew_lease
from service.store.database import Database
from service.store.tables import AuditEntry, Batch
from tests import samples
from tests.skewed_clock import skew_clock

TERMS = ClaimTerms(lease_seconds=30, max_attempts=10)


@pytest.fixture(params=[timedelta(minutes=-10), timedelta(minutes=10)], ids=["behind", "ahead"])
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Skew this process's clock by ten minutes."""
    offset: timedelta = request.param
    skew_clock(monkeypatch, offset)
    return offset


def true_time() -> datetime:
    return datetime.now(UTC)


def claim(database: Database, model_id: uuid.UUID) -> Claim | None:
    with database.writing() as session:
        return claim_batch(session, model_id, "worker", TERMS)


def lease_ends(database: Database, claimed: Claim) -> timedelta:
    with database.reading() as session:
        return session.get_one(Batch, claimed.batch_id).lease_expires_at - true_time()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_worker_with_a_skewed_clock_judges_leases_correctly(
    settings: Settings, database: Database, skew: timedelta
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    claimed = claim(database, model_id)
    assert claimed is not None
    assert timedelta(seconds=20) < lease_ends(database, claimed) < timedelta(seconds=40)
    with database.writing() as session:
        renew_lease(session, claimed.batch_id, 30, "newton", 50)
    assert timedelta(seconds=20) < lease_ends(database, claimed) < timedelta(seconds=40)
    assert claim(database, model_id) is None
    with database.writing() as session:
        assert list(models_to_ring(session)) == []
        session.execute(update(Batch).values(lease_expires_at=true_time() - timedelta(seconds=1)))
    with database.reading() as session:
        assert list(models_to_ring(session)) == [model_id]
    assert claim(database, model_id) is not None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_uses_the_clock_of_its_host(database: Database, skew: timedelta) -> None:
    with database.reading() as session:
        assert abs(clock.current_time(session) - true_time() - skew) < timedelta(seconds=10)


def test_the_time_of_a_transaction_goes_on(database: Database) -> None:
    """One that waited for a lock must not date what it signs before what others signed in the meantime."""
    with database.writing() as session:
        first = clock.current_time(session)
        second = clock.current_time(session)
        audit.record(session, "test", "thing.done", "a")
        session.flush()
        (entry,) = session.scalars(select(AuditEntry))
        assert first.tzinfo is second.tzinfo is entry.at.tzinfo is UTC
        assert first < second < entry.at < clock.current_time(session)
