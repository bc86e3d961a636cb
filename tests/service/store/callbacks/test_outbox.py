"""The outbox alone: when rows are written, who can claim them, and who can record a result."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch, fail_batch
from service.store.callbacks import outbox
from service.store.callbacks.claiming import ClaimedCallback, claim_callbacks
from service.store.callbacks.slots import Slots
from service.store.database import Database
from service.store.deletions import interventions
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.errors import NotFound, NotResendable
from service.store.signing.keys import open_signer
from service.store.states import CallbackStatus
from service.store.tables import AuditEntry, Callback, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)
URLS = ["https://one.example/hook?key=secret", "https://two.example/hook"]
NOBODY = 999


def rows(database: Database) -> Sequence[Callback]:
    with database.reading() as session:
        return session.scalars(select(Callback).order_by(Callback.deletion_id, Callback.sequence)).all()


def claim(database: Database) -> Sequence[ClaimedCallback]:
    with database.writing() as session:
        return claim_callbacks(session, Slots(), lease_seconds=60)


def run_and_fail(database: Database, model_id: uuid.UUID) -> None:
    with database.writing() as session:
        claimed = claim_batch(session, model_id, "worker", TERMS)
    assert claimed is not None
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "disk full", permanent=True, max_attempts=3, splits=False)


def test_each_change_of_status_is_written_for_each_url(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion = samples.request_deletion(settings, database, 1, callback_urls=[*URLS, URLS[0]]).deletion
    samples.request_deletion(settings, database, 2)  # without callbacks
    assert rows(database) == []
    run_and_fail(database, model_id)
    with database.writing() as session:
        interventions.retry(session, deletion.id, None, "operator")
        interventions.cancel(session, deletion.id, None, "operator")
    callbacks = rows(database)
    messages = [(row.sequence, row.url, row.message["status"]) for row in callbacks]
    statuses = ("running", "failed", "pending", "cancelled")
    expected = [(url, status) for status in statuses for url in URLS]
    assert messages == [(number, *pair) for number, pair in enumerate(expected, 1)]
    assert {row.deletion_id for row in callbacks} == {deletion.id}
    assert {row.status for row in callbacks} == {"pending"}


def test_a_rolled_back_change_has_no_callback(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1, callback_urls=URLS)
    with database.writing() as session:
        assert claim_batch(session, model_id, "worker", TERMS) is not None
        assert session.scalar(select(func.count()).select_from(Callback)) == len(URLS)
        session.rollback()
    assert rows(database) == []


def test_a_deletion_that_is_complete_on_arrival_has_a_callback_with_its_absence(
    settings: Settings, database: Database
) -> None:
    deletion = samples.request_deletion(settings, database, NOBODY, callback_urls=URLS[:1]).deletion
    (row,) = rows(database)
    assert row.message["status"] == "completed"
    assert row.message["absence"] == f"/api/v1/deletions/{deletion.id}/absence"
    assert row.message["certificates"] == []


def test_opendsr_callbacks_are_sent_only_when_the_opendsr_status_changes(
    settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    reference = OpenDsrReference("acme", uuid.uuid4(), bytes)
    request = DeletionRequest(
        "acme", "gdpr", [samples.lookup(settings, 1)], None, "request-1", 0.0, callback_urls=URLS[:1], opendsr=reference
    )
    signer = open_signer(settings, database)
    with database.writing() as session:
        store_deletions(session, [request], signer)
    run_and_fail(database, model_id)  # stays in progress in OpenDSR
    (row,) = rows(database)
    assert row.message["status"] == "running"
    (claimed,) = claim(database)
    assert (claimed.subject_request_id, claimed.caller) == (reference.subject_request_id, "acme")


def test_only_the_first_unsent_of_each_deletion_and_url_is_claimed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1, callback_urls=URLS)
    run_and_fail(database, model_id)
    first = claim(database)
    assert sorted((callback.sequence, callback.url) for callback in first) == [(1, URLS[0]), (2, URLS[1])]
    assert claim(database) == []  # both are claimed, and later ones wait for them
    by_url = {callback.url: callback for callback in first}
    with database.writing() as session:
        assert outbox.mark_delivered(session, by_url[URLS[0]])
        assert outbox.mark_failed(session, by_url[URLS[1]], "no answer", timedelta(hours=1))
    assert [(callback.sequence, callback.url) for callback in claim(database)] == [(3, URLS[0])]
    with database.writing() as session:  # a dead callback does not block the next one
        session.execute(update(Callback).where(Callback.sequence == 2).values(status=CallbackStatus.DEAD))
    assert [(callback.sequence, callback.url) for callback in claim(database)] == [(4, URLS[1])]


def test_a_lost_lease_is_claimed_again_and_its_old_holder_cannot_record_a_result(
    settings: Settings, database: Database
) -> None:
    samples.request_deletion(settings, database, NOBODY, callback_urls=URLS[:1])
    (late,) = claim(database)
    with database.writing() as session:
        session.execute(update(Callback).values(lease_expires_at=now() - timedelta(seconds=1)))
    (current,) = claim(database)
    assert (current.id, current.attempts) == (late.id, 2)
    with database.writing() as session:
        assert not outbox.mark_failed(session, late, "no answer", None)
        assert not outbox.mark_delivered(session, late)
    assert rows(database)[0].status == "pending"
    with database.writing() as session:
        assert outbox.mark_delivered(session, current)
        assert not outbox.mark_delivered(session, current)
    assert rows(database)[0].status == "delivered"


def test_a_dead_callback_is_logged_with_its_host_only_and_can_be_sent_again(
    settings: Settings, database: Database
) -> None:
    deletion = samples.request_deletion(settings, database, NOBODY, callback_urls=URLS[:1]).deletion
    (claimed,) = claim(database)
    with database.writing() as session, pytest.raises(NotResendable, match="pending"):
        outbox.resend(session, claimed.id, "operator")
    with database.writing() as session:
        outbox.mark_failed(session, claimed, "no answer", None)
    assert claim(database) == []
    with database.writing() as session:
        outbox.resend(session, claimed.id, "operator")
    (resent,) = claim(database)
    assert (resent.id, resent.message, resent.attempts) == (claimed.id, claimed.message, 1)
    with database.writing() as session:
        outbox.mark_delivered(session, resent)
    with database.reading() as session:
        query = select(AuditEntry).where(AuditEntry.action.like("callback.%")).order_by(AuditEntry.id)
        entries = session.scalars(query).all()
    assert [entry.action for entry in entries] == ["callback.dead", "callback.resent", "callback.delivered"]
    assert {entry.concerns for entry in entries} == {str(deletion.id)}
    assert entries[0].details == {
        "callback": str(claimed.id),
        "host": "one.example",
        "told": "completed",
        "attempts": 1,
        "reason": "no answer",
    }
    assert not any("secret" in str(entry.details) for entry in entries)


def test_an_unknown_callback_cannot_be_sent_again(database: Database) -> None:
    with database.writing() as session, pytest.raises(NotFound):
        outbox.resend(session, uuid.uuid4(), "operator")
