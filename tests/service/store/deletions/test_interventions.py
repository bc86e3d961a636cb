"""Concurrent changes of a deletion by people and workers: one wins, and its state stays consistent."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store import dialect
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.deletions import interventions
from service.store.deletions.lifecycle import refresh
from service.store.deletions.listing import Criteria
from service.store.deletions.views import find_view
from service.store.errors import NotCancellable
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionTarget
from tests import samples
from tests.service.deletion_rows import add_rows

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3, window_seconds=0)


def test_either_a_cancellation_or_a_claim_wins(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)

    def cancel(deletion_id: uuid.UUID) -> bool:
        try:
            with database.writing() as session:
                interventions.cancel(session, deletion_id, caller=None, actor="test")
        except NotCancellable:
            return False
        return True

    def claim() -> Claim | None:
        with database.writing() as session:
            return claim_batch(session, model_id, "worker", TERMS)

    for _ in range(15):
        deletion_id = samples.request_deletion(settings, database, 1).deletion.id
        with ThreadPoolExecutor(2) as pool:
            cancelling, claiming = pool.submit(cancel, deletion_id), pool.submit(claim)
            cancelled, claimed = cancelling.result(timeout=30), claiming.result(timeout=30)
        assert cancelled == (claimed is None)
        with database.writing() as session:
            view = find_view(session, deletion_id, caller=None)
            statuses = {view.deletion.status, view.targets[0].status}
            assert statuses == {"cancelled" if cancelled else "running"}
            if claimed is not None:
                fail_batch(session, claimed.batch_id, "make room", permanent=True, max_attempts=3)


def test_two_models_that_finish_at_once_complete_the_deletion(settings: Settings, database: Database) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(2)]
    for _ in range(15):
        deletion_id = samples.request_deletion(settings, database, 1).deletion.id

        def finish(model_id: uuid.UUID, deletion_id: uuid.UUID = deletion_id) -> None:
            with database.writing() as session:
                target = session.get_one(DeletionTarget, (deletion_id, model_id))
                target.status = DeletionStatus.COMPLETED
                refresh(session, [deletion_id])

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(finish, model_ids))
        with database.reading() as session:
            assert session.get_one(Deletion, deletion_id).status == "completed"


@pytest.mark.parametrize(
    ("before", "after", "overall"),
    [
        (["pending", "pending"], ["cancelled", "cancelled"], "cancelled"),
        (["pending", "completed"], ["cancelled", "completed"], "cancelled"),
        (["pending", "failed"], ["cancelled", "cancelled"], "cancelled"),
        (["pending", "running"], None, None),
        (["failed", "failed"], None, None),
    ],
)
def test_cancelling_affects_models_that_are_not_completed(
    settings: Settings, database: Database, before: list[str], after: list[str] | None, overall: str | None
) -> None:
    model_ids = sorted(samples.register_sample(settings, database) for _ in before)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    with database.writing() as session:
        for model_id, status in zip(model_ids, before, strict=True):
            session.get_one(DeletionTarget, (deletion_id, model_id)).status = status
        refresh(session, [deletion_id])
    if after is None:
        with pytest.raises(NotCancellable), database.writing() as session:
            interventions.cancel(session, deletion_id, caller=None, actor="test")
        return
    with database.writing() as session:
        view = interventions.cancel(session, deletion_id, caller=None, actor="test")
    assert [target.status for target in view.targets] == after
    assert view.deletion.status == overall


def test_a_retry_by_filter_stops_at_its_limit_with_the_oldest_first(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interventions, "MAX_RETRIED", 4)
    monkeypatch.setattr(dialect, "CHUNK_SIZE", 3)
    model_id = samples.register_sample(settings, database)
    newest_first = add_rows(database, 6, model_id, status="failed")
    with database.writing() as session:
        retried = interventions.retry_matching(session, Criteria(), "test")
    assert (retried.deletions, retried.model_ids) == (4, frozenset({model_id}))
    with database.reading() as session:
        failed = session.scalars(select(Deletion.id).where(Deletion.status == "failed")).all()
    assert set(failed) == set(newest_first[:2])
