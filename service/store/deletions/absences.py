"""Absences: deletions of what no model held at receipt. They are completed and certified once they are binding.

Until then they look to their caller like any other deletion (views.py), so that asking and cancelling does not reveal
who is in which model.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, delete, insert, select
from sqlalchemy.orm import Session

from service.store.certificates.statements import sign_absence
from service.store.certificates.verification import verify_statements
from service.store.clock import current_time
from service.store.deletions.lifecycle import end_absent
from service.store.deletions.views import DeletionView, views_of
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner, statement_digest
from service.store.states import DeletionStatus
from service.store.tables import Absence, AuditEntry, Deletion, PendingAbsence

MAX_SETTLED = 500
"""Absences certified in one transaction."""


def has_due_absences(session: Session) -> bool:
    due = select(PendingAbsence.deletion_id).where(PendingAbsence.binding_at <= current_time(session))
    return session.scalars(due.limit(1)).first() is not None


def settle_absences(session: Session, signer: StatementSigner) -> int:
    """Complete and certify absences that are binding now. Return their number, at most MAX_SETTLED.

    Those that somebody cancels, or another sweep settles at the same time, are skipped.
    """
    timestamp = current_time(session)
    pending = session.scalars(
        select(PendingAbsence)
        .where(PendingAbsence.binding_at <= timestamp)
        .order_by(PendingAbsence.deletion_id)
        .limit(MAX_SETTLED)
        .with_for_update(skip_locked=True)
    ).all()
    if not pending:
        return 0
    require_active(session, signer)
    model_counts = {row.deletion_id: row.models_in_store for row in pending}
    deletions = session.scalars(select(Deletion).where(Deletion.id.in_(model_counts))).all()
    certify_absences(session, views_of(session, deletions), model_counts, signer, timestamp)
    session.execute(delete(PendingAbsence).where(PendingAbsence.deletion_id.in_(model_counts)))
    end_absent(session, sorted(model_counts), DeletionStatus.COMPLETED)
    return len(pending)


def certify_absences(
    session: Session,
    views: Iterable[DeletionView],
    model_counts: Mapping[uuid.UUID, int],
    signer: StatementSigner,
    issued_at: datetime,
) -> None:
    """Sign, verify and store certificates of absence. `model_counts` are the numbers of models that were searched."""
    rows = [
        {
            "deletion_id": view.deletion.id,
            "issued_at": issued_at,
            "bundle": sign_absence(signer, view, model_counts[view.deletion.id], issued_at),
        }
        for view in views
    ]
    if rows:
        verify_statements(session, signer.origin, (str(row["bundle"]) for row in rows))
        session.execute(insert(cast(Table, Absence.__table__)), rows)
        entries = [entry for row in rows for entry in _entries(row)]
        session.execute(insert(cast(Table, AuditEntry.__table__)), entries)


def cancel_absence(session: Session, deletion_id: uuid.UUID) -> bool:
    """Cancel a deletion whose absence is not certified yet. False if it is, or if a model holds something."""
    query = select(PendingAbsence).where(PendingAbsence.deletion_id == deletion_id).with_for_update()
    pending = session.scalars(query.execution_options(populate_existing=True)).first()
    if pending is None:
        return False
    session.delete(pending)
    end_absent(session, [deletion_id], DeletionStatus.CANCELLED)
    return True


def _entries(absence: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    shared = {"actor": "lethe", "concerns": str(absence["deletion_id"]), "at": absence["issued_at"]}
    yield {**shared, "action": "deletion.completed", "details": {}}
    yield {**shared, "action": "absence.certified", "details": {"statement": statement_digest(absence["bundle"])}}
