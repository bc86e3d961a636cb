"""Completes and certifies all deletions of a batch at once: one by one would take longer than forgetting itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

from sqlalchemy import ColumnElement, Table, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.store import audit
from service.store.batches.selection import remaining_records
from service.store.certificates.statements import Certified, IssuedCertificate, issue
from service.store.clock import current_time
from service.store.dialect import stay_active
from service.store.errors import ClockBehind
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus
from service.store.tables import Certificate, Deletion, DeletionRecord, DeletionSubject, DeletionTarget

T = TypeVar("T")


def complete_and_certify(
    session: Session, batch_id: uuid.UUID, certified: Certified, signer: StatementSigner
) -> Mapping[uuid.UUID, IssuedCertificate]:
    """Return the certificates by deletion. Call it before erasing, while records still name their owners.

    Raises ClockBehind if one would be dated before its request.
    """
    in_batch = (DeletionTarget.batch_id == batch_id) & (DeletionTarget.status == DeletionStatus.RUNNING)
    issued_at = current_time(session)
    certificates = dict(_issue_each(session, in_batch, certified, signer, issued_at))
    shared = {
        "model_id": certified.model.id,
        "version_id": certified.version.id,
        "batch_id": batch_id,
        "level": certified.level,
        "epsilon": certified.epsilon,
        "issued_at": issued_at,
    }
    rows = [
        {"id": certificate.id, "deletion_id": deletion_id, "bundle": certificate.bundle, **shared}
        for deletion_id, certificate in certificates.items()
    ]
    if rows:
        session.execute(insert(cast(Table, Certificate.__table__)), rows)
    details = {
        certificate.id: {"deletion": str(deletion_id), "statement": certificate.statement}
        for deletion_id, certificate in certificates.items()
    }
    audit.record_each(session, "lethe", "certificate.issued", details)
    session.execute(update(DeletionTarget).where(in_batch).values(status=DeletionStatus.COMPLETED))
    return certificates


def require_later(issued_at: datetime, received: Iterable[datetime]) -> None:
    """Raise ClockBehind if a request was received after this time."""
    latest = max(received, default=issued_at)
    if issued_at < latest:
        raise ClockBehind(
            f"the database's clock is at least {latest - issued_at} behind the time at which a request was received: "
            "correct it, or wait until it has caught up. Nothing was published or erased; it is retried automatically "
            "a few times, after that retry it."
        )


def _issue_each(
    session: Session,
    in_batch: ColumnElement[bool],
    certified: Certified,
    signer: StatementSigner,
    issued_at: datetime,
) -> Iterator[tuple[uuid.UUID, IssuedCertificate]]:
    of_model = in_batch & (DeletionRecord.model_id == certified.model.id)
    commitments = _by_deletion(session, DeletionSubject.deletion_id, DeletionSubject.commitment, in_batch)
    named_records = _by_deletion(session, DeletionRecord.deletion_id, DeletionRecord.record, of_model)
    query = select(Deletion).join(DeletionTarget, DeletionTarget.deletion_id == Deletion.id).where(in_batch)
    deletions = session.scalars(query).all()
    records = remaining_records(session, certified.model.id, [deletion.id for deletion in deletions])
    require_later(issued_at, (deletion.received_at for deletion in deletions))
    for deletion in stay_active(session, deletions):
        named = commitments.get(deletion.id, []), named_records.get(deletion.id, [])
        yield deletion.id, issue(signer, certified, deletion, *named, records[deletion.id], issued_at)


def _by_deletion(
    session: Session,
    deletion_id: InstrumentedAttribute[uuid.UUID],
    value: InstrumentedAttribute[T],
    where: ColumnElement[bool],
) -> Mapping[uuid.UUID, Sequence[T]]:
    grouped: dict[uuid.UUID, list[T]] = {}
    query = select(deletion_id, value).join(DeletionTarget, DeletionTarget.deletion_id == deletion_id).where(where)
    for key, item in session.execute(query):
        grouped.setdefault(key, []).append(item)
    return grouped
