"""No certificate is published that its own verifier rejects: wrong clocks, keys that end, and signatures that fail."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, update

from lethe.verify import verify
from service.schemas.log import public_keys_out
from service.settings import Settings, new_key
from service.store.certificates.bundles import find_certificate
from service.store.clock import current_time
from service.store.database import Database
from service.store.log import sequencing
from service.store.log.checkpoints import write_checkpoint
from service.store.signing import keys
from service.store.signing.statements import StatementSigner, key_id_of
from service.store.states import SigningUse
from service.store.tables import Certificate, Deletion, DeletionTarget, Record, now
from tests import samples
from tests.skewed_clock import skew_clock
from worker.context import WorkerContext
from worker.forget import forget_pending


def key_list(context: WorkerContext) -> bytes:
    with context.database.reading() as session:
        listed = keys.keys_for(session, context.signer)
        return public_keys_out(context.settings, listed).model_dump_json().encode()


def verify_all(context: WorkerContext) -> int:
    """Verify every certificate as downloaded. Return their number."""
    listed = key_list(context)
    with context.database.reading() as session:
        ids = session.scalars(select(Certificate.id)).all()
        for certificate_id in ids:
            verify(find_certificate(session, certificate_id, caller=None).encode(), listed)
    return len(ids)


def due_again(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=current_time(session)))


def require_postponed(database: Database, model_id: uuid.UUID, reason: str) -> None:
    """Check that nothing was published or erased, and that the deletion waits for its next attempt."""
    with database.reading() as session:
        target = session.scalars(select(DeletionTarget)).one()
        records = session.scalar(select(func.count()).where(Record.model_id == model_id))
        certificates = session.scalar(select(func.count()).select_from(Certificate))
    assert reason in str(target.failure)
    assert (target.status, target.attempts, records, certificates) == ("pending", 1, len(samples.points()), 0)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("seconds", [-3600, -5, 5, 3600])
def test_a_worker_with_a_wrong_clock_publishes_certificates_that_verify(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with monkeypatch.context() as skewed:
        skew_clock(skewed, timedelta(seconds=seconds))
        assert abs(now() - datetime.now(UTC)) > timedelta(seconds=abs(seconds) - 1)
        assert forget_pending(context, model_id)
        samples.request_deletion(settings, database, 2)  # received by a process with the wrong clock
    assert forget_pending(context, model_id)
    assert verify_all(context) == 2
    with database.reading() as session:
        for deletion in session.scalars(select(Deletion)):
            assert deletion.completed_at is not None
            assert deletion.received_at < deletion.completed_at < current_time(session)


def test_a_database_clock_that_went_back_postpones_the_deletion(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    with database.writing() as session:
        received_at = session.get_one(Deletion, deletion_id).received_at
        session.execute(update(Deletion).values(received_at=received_at + timedelta(hours=1)))
    assert forget_pending(context, model_id)
    require_postponed(database, model_id, "the database's clock is at least 0:59")
    with database.writing() as session:
        session.execute(update(Deletion).values(received_at=received_at))
    due_again(database)
    assert forget_pending(context, model_id)
    assert verify_all(context) == 1


@pytest.mark.parametrize("use", list(SigningUse))
def test_a_worker_whose_key_ended_publishes_nothing_until_it_has_the_successor(
    settings: Settings, database: Database, context: WorkerContext, use: SigningUse
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    name = "log_key" if use == SigningUse.LOG else "signing_key"
    changed = settings.model_copy(update={name: SecretStr(new_key())})
    successor, old = keys.configured_signer(changed), context.signer.public_keys[use]
    with database.writing() as session:
        keys.rotate(session, old, successor.public_keys[use], use, "ops")
        keys.retire(session, key_id_of(old), "ops")
    assert forget_pending(context, model_id)
    require_postponed(database, model_id, f"{key_id_of(old)[:8]} was retired")
    due_again(database)
    restarted = replace(context, settings=changed, signer=successor)
    assert forget_pending(restarted, model_id)
    assert verify_all(restarted) == 1


def test_what_the_verifier_rejects_is_not_published(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    stranger = StatementSigner(bytes(32), bytes(31) + b"l", context.signer.origin)
    with monkeypatch.context() as broken:
        broken.setattr(sequencing, "write_checkpoint", lambda _, size, root: write_checkpoint(stranger, size, root))
        assert forget_pending(context, model_id)
    require_postponed(database, model_id, "the verifier rejects a certificate")
    due_again(database)
    assert forget_pending(context, model_id)
    assert verify_all(context) == 1
