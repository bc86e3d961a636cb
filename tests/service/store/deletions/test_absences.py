from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

import lethe.verify
from service.settings import Settings
from service.store.certificates.bundles import find_absence
from service.store.clock import current_time
from service.store.database import Database
from service.store.deletions import absences
from service.store.deletions.absences import cancel_absence, has_due_absences, settle_absences
from service.store.deletions.creation import NO_SUBJECT_HELD
from service.store.errors import KeyInactive, NotFound
from service.store.log.sequencing import sequence_entries
from service.store.signing.keys import open_signer, retire
from service.store.signing.statements import StatementSigner
from service.store.tables import Absence, AuditEntry, Callback, Deletion, PendingAbsence
from tests import samples
from tests.bundles import key_list

STRANGER = 999


def ask(settings: Settings, database: Database, person: int = STRANGER) -> uuid.UUID:
    patient = settings.model_copy(update={"batch_window_seconds": 3600.0})
    return samples.request_deletion(patient, database, person, callback_urls=["https://one.example/"]).deletion.id


def make_binding(database: Database) -> None:
    with database.writing() as session:
        past = current_time(session) - timedelta(seconds=1)
        session.execute(update(PendingAbsence).values(binding_at=past))
        session.execute(update(Deletion).values(binding_at=past))


def test_an_absence_is_certified_once_it_is_binding(settings: Settings, database: Database) -> None:
    """As of receipt: a model that was registered since was not searched."""
    samples.register_sample(settings, database)
    signer, deletion_id = open_signer(settings, database), ask(settings, database)
    samples.register_sample(settings, database)
    with database.writing() as session:
        assert not has_due_absences(session)
        assert settle_absences(session, signer) == 0
    with pytest.raises(NotFound), database.reading() as session:
        find_absence(session, deletion_id, "acme")
    make_binding(database)
    with database.writing() as session:
        assert has_due_absences(session)
        assert settle_absences(session, signer) == 1
        sequence_entries(session, signer)
    with database.reading() as session:
        deletion = session.get_one(Deletion, deletion_id)
        assert (deletion.status, deletion.outcome) == ("completed", NO_SUBJECT_HELD)
        assert deletion.completed_at is not None
        bundle = find_absence(session, deletion_id, "acme")
        message = session.scalars(select(Callback.message)).one()
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.concerns == str(deletion_id))).all()
        assert not has_due_absences(session)
    verified = lethe.verify.verify(bundle.encode(), key_list(signer))
    assert verified.predicate["models_in_store"] == 1
    assert message["absence"] == f"/api/v1/deletions/{deletion_id}/absence"
    assert actions == ["deletion.received", "deletion.completed", "absence.certified"]


def test_absences_are_settled_in_batches(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absences, "MAX_SETTLED", 2)
    signer = open_signer(settings, database)
    for _ in range(3):
        ask(settings, database)
    make_binding(database)
    for count in (2, 1, 0):
        with database.writing() as session:
            assert settle_absences(session, signer) == count
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Absence)) == 3


def test_only_a_pending_absence_can_be_cancelled(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    signer, absent, held = open_signer(settings, database), ask(settings, database), ask(settings, database, 1)
    with database.writing() as session:
        assert not cancel_absence(session, held)
        assert cancel_absence(session, absent)
        assert not cancel_absence(session, absent)
    make_binding(database)
    with database.writing() as session:
        assert settle_absences(session, signer) == 0
        assert session.get_one(Deletion, absent).status == "cancelled"


def test_nothing_is_certified_under_a_retired_key(settings: Settings, database: Database) -> None:
    signer: StatementSigner = open_signer(settings, database)
    ask(settings, database)
    make_binding(database)
    with database.writing() as session:
        retire(session, signer.key_id, "test")
    with pytest.raises(KeyInactive), database.writing() as session:
        settle_absences(session, signer)
    with database.reading() as session:
        assert has_due_absences(session)
