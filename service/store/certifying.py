"""The deletions of a batch, completed and certified by the set: one by one, a thousand would outlast the forgetting."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.store import audit
from service.store.certificates import Forgetting, issue
from service.store.choosing import held_records
from service.store.signing import StatementSigner, statement_digest
from service.store.states import DeletionStatus
from service.store.tables import Certificate, Deletion, DeletionRecord, DeletionSubject, DeletionTarget, now

T = TypeVar("T")


def complete_and_certify(
    session: Session, batch_id: uuid.UUID, forgetting: Forgetting, signer: StatementSigner
) -> Mapping[uuid.UUID, uuid.UUID]:
    """Returns the certificates by deletion. Before anything is erased: it must be known whose the records were."""
    in_batch = (DeletionTarget.batch_id == batch_id) & (DeletionTarget.status == DeletionStatus.RUNNING)
    rows = list(_certificate_rows(session, in_batch, forgetting, signer))
    if rows:
        session.execute(insert(Certificate), [{**row, "batch_id": batch_id} for row in rows])
    logged = {
        row["id"]: {"deletion": str(row["deletion_id"]), "statement": statement_digest(row["bundle"])} for row in rows
    }
    audit.record_each(session, "lethe", "certificate.issued", logged)
    session.execute(update(DeletionTarget).where(in_batch).values(status=DeletionStatus.COMPLETED))
    return {row["deletion_id"]: row["id"] for row in rows}


def _certificate_rows(
    session: Session, in_batch: ColumnElement[bool], forgetting: Forgetting, signer: StatementSigner
) -> Iterator[dict[str, Any]]:
    of_model = in_batch & (DeletionRecord.model_id == forgetting.model.id)
    commitments = _by_deletion(session, DeletionSubject.deletion_id, DeletionSubject.commitment, in_batch)
    named_records = _by_deletion(session, DeletionRecord.deletion_id, DeletionRecord.record, of_model)
    evidence, issued_at = forgetting.evidence, now()
    common = {
        "model_id": forgetting.model.id,
        "version_id": forgetting.after.id,
        "level": evidence.level,
        "epsilon": evidence.epsilon,
        "issued_at": issued_at,
    }
    owned = select(Deletion).join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id).where(in_batch)
    deletions = session.scalars(owned).all()
    held = held_records(session, forgetting.model.id, [deletion.id for deletion in deletions])
    for deletion in deletions:
        named = commitments.get(deletion.id, []), named_records.get(deletion.id, [])
        certificate_id, bundle = issue(signer, forgetting, deletion, *named, held[deletion.id], issued_at)
        yield {"id": certificate_id, "deletion_id": deletion.id, **common, "bundle": bundle}


def _by_deletion(
    session: Session,
    deletion_id: InstrumentedAttribute[uuid.UUID],
    value: InstrumentedAttribute[T],
    where: ColumnElement[bool],
) -> Mapping[uuid.UUID, Sequence[T]]:
    grouped: dict[uuid.UUID, list[T]] = {}
    query = select(deletion_id, value).join(DeletionTarget, DeletionTarget.deletion_id == deletion_id).where(where)
    for one, found in session.execute(query):
        grouped.setdefault(one, []).append(found)
    return grouped
