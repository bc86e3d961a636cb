from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from service.settings import Settings
from service.store.database import Database
from service.store.refreshes.lifecycle import RefreshClaim, claim_refresh
from service.store.tables import DeletionTarget, Refresh, now
from tests import samples
from tests.service.store.refreshes.worn import worn_model
from tests.waiting import wait_until
from tests.worker.refreshes import only_refresh
from worker import refresh_lease
from worker.context import WorkerContext
from worker.refresh_lease import GaveWay, RefreshLease


@pytest.fixture(autouse=True)
def _quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_lease, "BEAT_SECONDS", 0.01)


def claim(context: WorkerContext, model_id: uuid.UUID) -> RefreshClaim:
    with context.database.writing() as session:
        claimed = claim_refresh(session, model_id, context.name, context.refresh_terms)
    assert claimed is not None
    return claimed


def gives_way(lease: RefreshLease) -> bool:
    try:
        lease.report("sampling", 0.25)
    except GaveWay:
        return True
    return False


def test_the_heartbeat_writes_the_progress_and_renews_the_lease(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    claimed = claim(context, worn_model(settings, database))
    with database.writing() as session:
        session.execute(update(Refresh).values(lease_expires_at=now()))
    with RefreshLease(context, claimed) as lease:
        lease.report("sampling", 0.25)
        wait_until(lambda: only_refresh(database).percent == 25.0, "a heartbeat")
    refresh = only_refresh(database)
    assert (refresh.phase, refresh.status) == ("sampling", "running")
    assert refresh.lease_expires_at is not None
    assert refresh.lease_expires_at > now()


def test_a_lost_refresh_is_noticed(settings: Settings, database: Database, context: WorkerContext) -> None:
    claimed = claim(context, worn_model(settings, database))
    with RefreshLease(context, claimed) as lease:
        with database.writing() as session:
            session.execute(update(Refresh).values(claim_id=uuid.uuid4()))
        wait_until(lambda: gives_way(lease), "the successor was noticed")


@pytest.mark.parametrize(("of_its_model", "status"), [(True, "abandoned"), (False, "waiting")])
def test_it_ends_for_a_deletion_of_its_model_and_is_released_for_others(
    settings: Settings, database: Database, context: WorkerContext, of_its_model: bool, status: str
) -> None:
    model_id, other_id = worn_model(settings, database), samples.register_sample(settings, database)
    claimed = claim(context, model_id)
    with RefreshLease(context, claimed) as lease:
        samples.request_deletion(settings, database, 1, model_ids=[model_id if of_its_model else other_id])
        with database.writing() as session:
            session.execute(update(DeletionTarget).values(not_before=now() - timedelta(seconds=9)))
        wait_until(lambda: gives_way(lease), "the deletion was noticed")
    assert only_refresh(database).status == status


def test_an_unavailable_database_is_waited_for(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = claim(context, worn_model(settings, database))
    renewals: list[float] = []

    def renew(_session: object, _claim: object, _seconds: float, _phase: str, percent: float) -> None:
        renewals.append(percent)
        if len(renewals) == 1:
            raise OperationalError("select 1", {}, Exception("no answer"))

    monkeypatch.setattr(refresh_lease, "renew_refresh", renew)
    with RefreshLease(context, claimed) as lease:
        wait_until(lambda: len(renewals) > 1, "the next heartbeat")
        assert gives_way(lease) is False
