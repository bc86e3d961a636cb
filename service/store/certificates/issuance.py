"""The deletions of a batch, completed and certified by the set: one by one, a thousand would outlast the forgetting."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

from sqlalchemy import ColumnElement, Table, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.store import audit
from service.store.batches.selection import held_records
from service.store.certificates.statements import Forgetting, Issued, issue
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus
from service.store.tables import Certificate, Deletion, DeletionRecord, DeletionSubject, DeletionTarget, now

T = TypeVar("T")


def complete_and_certify(
    session: Session, batch_id: uuid.UUID, forgetting: Forgetting, signer: StatementSigner
) -> Mapping[uuid.UUID, uuid.UUID]:
    """Returns the certificates by deletion. Before anything is erased: it must be known whose the records were."""
    in_batch = (DeletionTarget.batch_id == batch_id) & (DeletionTarget.status == DeletionStatus.RUNNING)
    issued_at, evidence = now(), forgetting.evidence
    issued = dict(_issue_each(session, in_batch, forgetting, signer, issued_at))
    common = {
        "model_id": forgetting.model.id,
        "version_id": forgetting.after.id,
        "batch_id": batch_id,
        "level": evidence.level,
        "epsilon": evidence.epsilon,
        "issued_at": issued_at,
    }
    rows = [{"id": one.id, "deletion_id": of, "bundle": one.bundle, **common} for of, one in issued.items()]
    if rows:
        session.execute(insert(cast(Table, Certificate.__table__)), rows)
    logged = {one.id: {"deletion": str(of), "statement": one.statement} for of, one in issued.items()}
    audit.record_each(session, "lethe", "certificate.issued", logged)
    session.execute(update(DeletionTarget).where(in_batch).values(status=DeletionStatus.COMPLETED))
    return {of: one.id for of, one in issued.items()}


def _issue_each(
    session: Session,
    in_batch: ColumnElement[bool],
    forgetting: Forgetting,
    signer: StatementSigner,
    issued_at: datetime,
) -> Iterator[tuple[uuid.UUID, Issued]]:
    of_model = in_batch & (DeletionRecord.model_id == forgetting.model.id)
    commitments = _by_deletion(session, DeletionSubject.deletion_id, DeletionSubject.commitment, in_batch)
    named_records = _by_deletion(session, DeletionRecord.deletion_id, DeletionRecord.record, of_model)
    owned = select(Deletion).join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id).where(in_batch)
    deletions = session.scalars(owned).all()
    held = held_records(session, forgetting.model.id, [deletion.id for deletion in deletions])
    for deletion in deletions:
        named = commitments.get(deletion.id, []), named_records.get(deletion.id, [])
        yield deletion.id, issue(signer, forgetting, deletion, *named, held[deletion.id], issued_at)


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
