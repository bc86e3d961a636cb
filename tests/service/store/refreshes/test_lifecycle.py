from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from service.settings import Settings
from service.store.batches.lifecycle import DELETIONS_FIRST, ClaimTerms, claim_batch
from service.store.database import Database
from service.store.errors import LeaseLost
from service.store.models.registry import current_version
from service.store.refreshes.lifecycle import (
    abandon_held,
    add_refresh,
    has_own_deletions,
    has_unserved_deletions,
    release_refreshes,
    renew_refresh,
)
from service.store.states import RefreshStatus
from service.store.tables import DeletionTarget, Refresh, now
from tests import samples
from tests.service.store.refreshes.worn import TERMS, claim, try_claim, worn_model


def expire(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(Refresh).values(lease_expires_at=now() - timedelta(seconds=1)))


def only_refresh(database: Database) -> Refresh:
    with database.reading() as session:
        return session.scalars(select(Refresh)).one()


def test_one_worker_at_a_time(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    assert try_claim(database, model_id) is None
    refresh = only_refresh(database)
    assert (refresh.status, refresh.worker, refresh.claim_id) == ("running", "worker-1", claimed.claim_id)
    with pytest.raises(IntegrityError), database.writing() as session:
        add_refresh(session, current_version(session, model_id))


def test_the_lease_is_renewed_with_the_progress_and_by_its_holder_only(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    late = claim(database, model_id)
    with database.writing() as session:
        renew_refresh(session, late, 30.0, "sampling", 40.0)
    refresh = only_refresh(database)
    assert (refresh.phase, refresh.percent) == ("sampling", 40.0)
    assert try_claim(database, model_id) is None
    expire(database)
    successor = claim(database, model_id)
    assert (successor.refresh_id, successor.claim_id != late.claim_id) == (late.refresh_id, True)
    with pytest.raises(LeaseLost), database.writing() as session:
        renew_refresh(session, late, 30.0, "sampling", 50.0)


def test_a_refresh_that_keeps_killing_its_worker_fails(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claim(database, model_id)
    expire(database)
    claim(database, model_id)
    expire(database)
    assert try_claim(database, model_id) is None
    refresh = only_refresh(database)
    assert (refresh.status, refresh.crashes, refresh.claim_id) == ("failed", 2, None)
    assert refresh.failure is not None
    assert "2 workers stopped answering" in refresh.failure


def test_a_stopping_worker_releases_its_refreshes_without_a_crash(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    first = claim(database, model_id)
    with database.writing() as session:
        assert release_refreshes(session, "worker-2") == []
        assert release_refreshes(session, "worker-1") == [model_id]
    refresh = only_refresh(database)
    assert (refresh.status, refresh.lease_expires_at, refresh.crashes) == (RefreshStatus.WAITING, None, 0)
    assert claim(database, model_id).refresh_id == first.refresh_id


def test_no_refresh_starts_beside_deletions(settings: Settings, database: Database) -> None:
    model_id, other_id = worn_model(settings, database), worn_model(settings, database)
    samples.request_deletion(settings, database, 1, model_ids=[model_id])
    assert try_claim(database, model_id) is None  # its own
    assert try_claim(database, other_id) is None  # somebody else's, which this worker could serve
    with database.writing() as session:
        claim_batch(session, model_id, "worker", ClaimTerms(30.0, 3))
    assert try_claim(database, model_id) is None
    assert try_claim(database, other_id) is not None


def test_the_claim_of_a_batch_ends_the_refresh(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        assert claim_batch(session, model_id, "worker-2", ClaimTerms(30.0, 3)) is not None
    refresh = only_refresh(database)
    assert (refresh.status, refresh.failure, refresh.claim_id) == ("abandoned", DELETIONS_FIRST, None)
    with pytest.raises(LeaseLost), database.writing() as session:
        abandon_held(session, claimed, "too late")


def test_when_a_refresh_has_to_give_way(settings: Settings, database: Database) -> None:
    model_id, other_id = worn_model(settings, database), samples.register_sample(settings, database)
    claimed = claim(database, model_id)

    def reasons() -> tuple[bool, bool]:
        with database.reading() as session:
            return has_own_deletions(session, claimed), has_unserved_deletions(session, claimed)

    assert reasons() == (False, False)
    samples.request_deletion(settings, database, 1, model_ids=[other_id])
    assert reasons() == (False, False)  # another worker may be idle
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now() - timedelta(seconds=5)))
    assert reasons() == (False, True)
    samples.request_deletion(settings, database, 2, model_ids=[model_id])
    assert reasons() == (True, True)


def test_draws_above_the_floor_need_no_refresh(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database, effective=TERMS.below * samples.WORN_DRAWS)
    assert try_claim(database, model_id) is None
    assert try_claim(database, samples.register_sample(settings, database)) is None
