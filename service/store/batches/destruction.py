"""Destruction of a model that a batch empties: one transaction ends it, erases, completes and certifies.

The sibling of publication.py, with the same order and the same fence. Nothing is computed and no file is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.store import audit
from service.store.artifacts.erasure import schedule_erasure
from service.store.batches.erasure import erase
from service.store.batches.lifecycle import Claim, end_batch
from service.store.certificates.destruction import Destruction, state_reason
from service.store.certificates.issuance import complete_and_certify
from service.store.certificates.verification import log_and_verify
from service.store.clock import current_time
from service.store.datasets.tree import DatasetTree
from service.store.deletions.bodies import delete_bodies
from service.store.deletions.lifecycle import refresh
from service.store.dialect import allow_long_work
from service.store.models.registry import current_version
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner
from service.store.states import BatchStatus
from service.store.tables import Batch, Model, Record, Version


def destroy_model(session: Session, claim: Claim, tree: DatasetTree, signer: StatementSigner) -> Sequence[uuid.UUID]:
    """End the model of the batch: all or nothing. Return the certificate ids. `tree` is of the current data set."""
    allow_long_work(session)
    batch = end_batch(session, claim.batch_id, BatchStatus.PUBLISHED)
    require_active(session, signer)
    batch.phase, batch.percent = "destroyed", 100.0
    model, last = session.get_one(Model, claim.model_id), current_version(session, claim.model_id)
    destruction = _end_model(session, claim, model, last, tree)
    _record(session, batch, destruction)
    certified = complete_and_certify(session, batch.id, destruction, signer)
    body_ids = erase(session, batch, Record.model_id == model.id)
    refresh(session, certified)
    delete_bodies(session, body_ids)
    return log_and_verify(session, signer, certified.values())


def _end_model(session: Session, claim: Claim, model: Model, last: Version, tree: DatasetTree) -> Destruction:
    """Supersede the last version without a successor and schedule the destruction of every file, at once."""
    model.destroyed_at = last.superseded_at = current_time(session)
    erasure = schedule_erasure(session, last, retained=(), posterior_until=model.destroyed_at)
    session.flush()
    reason = state_reason(last.record_count, len(claim.forgotten), claim.records_needed)
    return Destruction(model, last, tree, erasure, reason)


def _record(session: Session, batch: Batch, destruction: Destruction) -> None:
    audit.record(
        session,
        batch.worker,
        "model.destroyed",
        destruction.model.id,
        batch=str(batch.id),
        posterior=destruction.version.posterior_digest,
        dataset=destruction.version.dataset_digest,
        records=destruction.version.record_count,
    )
