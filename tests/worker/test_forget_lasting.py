"""Certificates stay valid after a thousand deletions, three key rotations and a revocation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import select
from sqlalchemy.orm import Session

from lethe.verify import Rejected, verify
from service.schemas.log import public_keys_out
from service.settings import Settings, new_key
from service.store.certificates import bundles
from service.store.database import Database
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.log import sequencing
from service.store.signing import keys
from service.store.signing.statements import key_id_of
from service.store.tables import Certificate, Deletion, now
from tests import samples
from tests.faults.population import draw_population, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

FIRST, EACH, ROTATIONS = 5, 250, 4
PEOPLE = FIRST + ROTATIONS * EACH + 300


def request_deletions(context: WorkerContext, people: Sequence[int]) -> list[uuid.UUID]:
    lookups = [samples.lookup(context.settings, person) for person in people]
    requests = [DeletionRequest("acme", "gdpr", [lookup], None, "request", 0.0) for lookup in lookups]
    with context.database.writing() as session:
        outcomes = store_deletions(session, requests, context.signer).outcomes
    return [view.deletion.id for view in outcomes if isinstance(view, DeletionView)]


def certificates_of(database: Database, deletion_ids: Sequence[uuid.UUID]) -> list[bytes]:
    with database.reading() as session:
        ids = session.scalars(select(Certificate.id).where(Certificate.deletion_id.in_(deletion_ids))).all()
        return [bundles.find_certificate(session, certificate_id, caller=None).encode() for certificate_id in ids]


def key_list(context: WorkerContext) -> bytes:
    with context.database.reading() as session:
        public_keys = keys.keys_for(session, context.signer)
        return public_keys_out(context.settings, public_keys).model_dump_json().encode()


def rotated(context: WorkerContext) -> WorkerContext:
    """Return a context with new keys, as `lethe key rotate`, a restart and `lethe key retire` leave it."""
    seeds = {name: SecretStr(new_key()) for name in ("signing_key", "log_key")}
    settings = context.settings.model_copy(update=seeds)
    signer = keys.configured_signer(settings)
    with context.database.writing() as session:
        for use, old in context.signer.public_keys.items():
            keys.rotate(session, old, signer.public_keys[use], use, actor="test")
            keys.retire(session, key_id_of(old), actor="test")
    return replace(context, settings=settings, signer=signer)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_first_certificates_still_verify(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = register_population(settings, database, draw_population(range(PEOPLE), 1, seed=1))
    first_ids = request_deletions(context, range(FIRST))
    assert forget_pending(context, model_id)
    first = certificates_of(database, first_ids)
    assert len(first) == FIRST
    for content in first:
        assert verify(content, key_list(context)).kind == "certificate"
    requested = FIRST
    for number in range(ROTATIONS):
        context = rotated(context) if number else context
        later_ids = request_deletions(context, range(requested, requested + EACH))
        assert forget_pending(context, model_id)
        requested += EACH
    with database.reading() as session:
        assert set(session.scalars(select(Deletion.status))) == {"completed"}
        size = sequencing.log_size(session)
        later = {content: _later(session, content) for content in first}
    assert certificates_of(database, first_ids) == first, "a second download has the same bytes"
    listed = key_list(context)
    for content, proof in later.items():
        verified = verify(content, listed, later=proof)
        assert f"the log at {size} entries" in verified.checks[-1]
        assert context.signer.log_key_id[:12] in verified.checks[-1]
    _refuse_after_revocation(context, certificates_of(database, later_ids[:1])[0], first[0])


def _refuse_after_revocation(context: WorkerContext, signed_late: bytes, first: bytes) -> None:
    """Revoke the last key as of an hour ago: only what it signed since then is refused."""
    with context.database.writing() as session:
        keys.revoke(session, context.signer.key_id, now() - timedelta(hours=1), "stolen", actor="test")
    listed = key_list(context)
    with pytest.raises(Rejected, match="when the key was revoked"):
        verify(signed_late, listed)
    assert verify(first, listed).kind == "certificate"


def _later(session: Session, content: bytes) -> bytes:
    """Return the API's proof that the newest checkpoint continues the one in a bundle."""
    newest = sequencing.latest_checkpoint(session)
    assert newest is not None
    old = int(json.loads(content)["log"]["checkpoint"].split("\n")[1])
    proof = [step.hex() for step in sequencing.prove_consistency(session, old, newest.size)]
    return json.dumps({"old": old, "new": newest.size, "proof": proof, "checkpoint": newest.note}).encode()
