"""New deletions: one or ten thousand are stored the same way, by the set, in as many statements."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, func, insert, select
from sqlalchemy.orm import Session

from service.store.access.identities import anonymous_commitment, commitment
from service.store.callbacks import outbox
from service.store.certificates.statements import received_entry, sign_absence
from service.store.deletions import deadlines
from service.store.deletions.holdings import Holdings, find_holdings
from service.store.deletions.lifecycle import DeletionView, NamedRecord, TargetView
from service.store.deletions.received import Received
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner, statement_digest
from service.store.states import DeletionStatus
from service.store.tables import (
    Absence,
    AuditEntry,
    Base,
    Deletion,
    DeletionRecord,
    DeletionSubject,
    DeletionTarget,
    Model,
    now,
)

NOBODY = "No model holds a record of this subject; there was nothing to forget."
RECORDS_ERASED = "The records were erased by an earlier deletion; there was nothing left to forget."


@dataclass(frozen=True)
class NewDeletion:
    """A request as it leaves the door: identities are keyed hashes already."""

    caller: str
    regulation: str
    lookups: Sequence[bytes]
    model_ids: Sequence[uuid.UUID] | None
    """Where to look for the subjects; None is everywhere."""
    request_id: str
    window_seconds: float
    """How long to wait for others to share a batch with."""
    records: Sequence[NamedRecord] = ()
    """Rows to forget by themselves: their owner's other rows stay."""
    callback_urls: Sequence[str] = ()
    """Whom to tell when its status changes."""


@dataclass(frozen=True)
class Draft:
    """A deletion that is about to be stored."""

    new: NewDeletion
    deletion: Received
    subjects: Mapping[str, uuid.UUID | None]
    """By commitment; None for a person nobody holds."""
    model_ids: Sequence[uuid.UUID]

    @functools.cached_property
    def view(self) -> DeletionView:
        targets = [TargetView(model_id, DeletionStatus.PENDING) for model_id in self.model_ids]
        return DeletionView(self.deletion, sorted(self.subjects), targets, self.new.records)


def create(session: Session, new: NewDeletion, signer: StatementSigner) -> DeletionView:
    """Store a request for every model that holds what it names, or complete and certify it if none does."""
    (found,) = create_many(session, [new], signer)
    if isinstance(found, NotFound):
        raise found
    return found


def create_many(
    session: Session, news: Sequence[NewDeletion], signer: StatementSigner
) -> Sequence[DeletionView | NotFound]:
    """For each request, in order, what became of it. One that names what never was keeps no other back."""
    holdings = find_holdings(
        session,
        lookups=(lookup for new in news for lookup in new.lookups),
        records=(record for new in news for record in new.records),
        model_ids=(model_id for new in news for model_id in new.model_ids or ()),
    )
    received_at = now()
    drafts = [_missing(new, holdings) or _draft(new, holdings, received_at) for new in news]
    _store(session, [draft for draft in drafts if isinstance(draft, Draft)], signer)
    return [draft.view if isinstance(draft, Draft) else draft for draft in drafts]


def _missing(new: NewDeletion, holdings: Holdings) -> NotFound | None:
    for model_id in new.model_ids or ():
        if model_id not in holdings.rows:
            return NotFound(f"there is no model {model_id}; leave `models` out to reach every model")
    for place, record in enumerate(new.records):
        if new.model_ids is not None and record.model_id not in new.model_ids:
            # Otherwise the subjects would be forgotten there as well, against what `models` says.
            return NotFound(f"records.{place} is of a model that is not among `models`; add it, or leave `models` out")
        if record.record >= holdings.rows.get(record.model_id, 0):
            return NotFound(f"records.{place} names a model or a record that never was; see the model's registration")
    return None


def _draft(new: NewDeletion, holdings: Holdings, received_at: datetime) -> Draft:
    subjects: dict[str, uuid.UUID | None] = {}
    model_ids = {one.model_id for one in new.records if one in holdings.records}
    for lookup in new.lookups:
        known = holdings.subjects.get(lookup)
        if known is None:
            subjects[anonymous_commitment(lookup)] = None
            continue
        subjects[commitment(known.key, lookup)] = known.id
        reach = known.model_ids if new.model_ids is None else set(known.model_ids).intersection(new.model_ids)
        model_ids.update(reach)
    return Draft(new, _deletion(new, received_at, waits=bool(model_ids)), subjects, sorted(model_ids))


def _deletion(new: NewDeletion, received_at: datetime, *, waits: bool) -> Received:
    sentences = [NOBODY] * bool(new.lookups) + [RECORDS_ERASED] * bool(new.records)
    return Received(
        id=uuid.uuid4(),
        caller=new.caller,
        regulation=new.regulation,
        status=DeletionStatus.PENDING if waits else DeletionStatus.COMPLETED,
        outcome=None if waits else " ".join(sentences),
        request_id=new.request_id,
        callback_urls=list(dict.fromkeys(new.callback_urls)) or None,
        received_at=received_at,
        due_at=deadlines.due(new.regulation, received_at),
        completed_at=None if waits else received_at,
    )


def _store(session: Session, drafts: Sequence[Draft], signer: StatementSigner) -> None:
    """Core inserts: an object for each row would take four times as long."""
    absent = [draft for draft in drafts if not draft.model_ids]
    models = (absent and session.scalar(select(func.count()).select_from(Model))) or 0
    _insert(session, Deletion, (vars(draft.deletion) for draft in drafts))
    _insert(session, DeletionSubject, (row for draft in drafts for row in _subject_rows(draft)))
    _insert(session, DeletionRecord, (row for draft in drafts for row in _record_rows(draft)))
    _insert(session, DeletionTarget, (row for draft in drafts for row in _target_rows(draft)))
    absences = [_absence_row(draft, models, signer) for draft in absent]
    _insert(session, Absence, absences)
    _insert(session, AuditEntry, (received_entry(draft.view) for draft in drafts))
    _insert(session, AuditEntry, (row for absence in absences for row in _absence_entries(absence)))
    outbox.enqueue(session, [outbox.Change(draft.deletion, DeletionStatus.PENDING, absent=True) for draft in absent])


def _insert(session: Session, table: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    chosen = list(rows)
    if chosen:
        session.execute(insert(cast(Table, table.__table__)), chosen)


def _subject_rows(draft: Draft) -> Iterator[dict[str, Any]]:
    for name, subject_id in draft.subjects.items():
        yield {"deletion_id": draft.deletion.id, "commitment": name, "subject_id": subject_id}


def _record_rows(draft: Draft) -> Iterator[dict[str, Any]]:
    for one in draft.new.records:
        yield {"deletion_id": draft.deletion.id, "model_id": one.model_id, "record": one.record}


def _target_rows(draft: Draft) -> Iterator[dict[str, Any]]:
    received_at = draft.deletion.received_at
    not_before = deadlines.held_until(received_at, draft.deletion.due_at, draft.new.window_seconds)
    times = {"received_at": received_at, "not_before": not_before}
    common = {"deletion_id": draft.deletion.id, "status": DeletionStatus.PENDING, **times}
    for model_id in draft.model_ids:
        yield {**common, "model_id": model_id}


def _absence_row(draft: Draft, models: int, signer: StatementSigner) -> dict[str, Any]:
    issued_at, bundle = sign_absence(signer, draft.view, models)
    return {"deletion_id": draft.deletion.id, "issued_at": issued_at, "bundle": bundle}


def _absence_entries(absence: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    common = {"actor": "lethe", "concerns": str(absence["deletion_id"]), "at": absence["issued_at"]}
    yield {**common, "action": "deletion.completed", "details": {}}
    yield {**common, "action": "absence.certified", "details": {"statement": statement_digest(absence["bundle"])}}
