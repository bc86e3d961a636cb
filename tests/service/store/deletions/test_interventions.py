"""Concurrent changes of a deletion by people and workers: one wins, and its state stays consistent."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store import dialect
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch
from service.store.clock import current_time
from service.store.database import Database
from service.store.deletions import interventions
from service.store.deletions.lifecycle import refresh
from service.store.deletions.listing import Criteria
from service.store.deletions.views import find_view
from service.store.errors import NotCancellable
from service.store.states import DeletionStatus
from service.store.tables import AuditEntry, Callback, Deletion, DeletionTarget, PendingAbsence
from tests import samples
from tests.service.deletion_rows import add_rows

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


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
        (["failed", "completed"], ["cancelled", "completed"], "cancelled"),
        (["completed", "completed"], None, None),
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


@pytest.mark.parametrize("person", [1, 999])
def test_a_caller_can_cancel_until_the_deletion_is_binding(settings: Settings, database: Database, person: int) -> None:
    """Alike for people who are held and for others, and it never shows which."""
    patient = settings.model_copy(update={"batch_window_seconds": 3600.0})
    samples.register_sample(settings, database)
    url = "https://one.example/"
    deletion_id = samples.request_deletion(patient, database, person, callback_urls=[url]).deletion.id
    with database.writing() as session:
        view = interventions.cancel(session, deletion_id, "acme", "acme")
        assert (view.deletion.status, view.deletion.binding_at, view.targets) == ("cancelled", None, ())
        message = session.scalars(select(Callback.message)).one()
    assert (message["status"], message["absence"], message["certificates"]) == ("cancelled", None, [])
    with pytest.raises(NotCancellable, match="the deletion is cancelled"), database.writing() as session:
        interventions.cancel(session, deletion_id, "acme", "acme")
    with database.reading() as session:
        assert session.scalars(select(PendingAbsence)).all() == []
        assert find_view(session, deletion_id, "acme").is_concealed
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.concerns == str(deletion_id))).all()
    assert sorted(actions) == ["deletion.cancelled", "deletion.received"]


@pytest.mark.parametrize("person", [1, 999])
def test_a_binding_deletion_is_cancelled_by_operators_only(settings: Settings, database: Database, person: int) -> None:
    patient = settings.model_copy(update={"batch_window_seconds": 3600.0})
    samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(patient, database, person).deletion.id
    with database.writing() as session:
        binding_at = current_time(session)
        session.execute(update(Deletion).values(binding_at=binding_at))
    with pytest.raises(NotCancellable, match="binding"), database.writing() as session:
        interventions.cancel(session, deletion_id, "acme", "acme")
    with database.writing() as session:
        view = interventions.cancel(session, deletion_id, caller=None, actor="operator")
        assert view.deletion.status == "cancelled"
        assert find_view(session, deletion_id, "acme").deletion.binding_at == binding_at


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
