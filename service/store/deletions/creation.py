"""Creation of deletions. One or ten thousand are stored in the same number of statements."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, func, insert, select
from sqlalchemy.orm import Session

from service.store.access.identities import anonymous_commitment, commitment
from service.store.callbacks import outbox
from service.store.certificates.statements import received_entry
from service.store.clock import current_time
from service.store.deletions import deadlines
from service.store.deletions.absences import certify_absences
from service.store.deletions.bodies import BodyMark, mark_body, save_marks
from service.store.deletions.holdings import Holdings, find_holdings
from service.store.deletions.opendsr import ReceivedRequest, digest_request, find_received
from service.store.deletions.requests import DeletionRequest, RequestKey
from service.store.deletions.views import DeletionRow, DeletionView, TargetView
from service.store.errors import IdempotencyMismatch, NotFound
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus
from service.store.tables import (
    AuditEntry,
    Base,
    Deletion,
    DeletionRecord,
    DeletionSubject,
    DeletionTarget,
    Model,
    OpenDsrRequest,
    PendingAbsence,
)

NO_SUBJECT_HELD = "No model holds a record of this subject; there was nothing to forget."
NOT_IN_SEARCHED_MODELS = (
    "None of the models searched holds a record of this subject; there was nothing to forget in them."
)
RECORDS_ERASED = "The records were erased by an earlier deletion; there was nothing left to forget."

Outcome = DeletionView | NotFound | IdempotencyMismatch


@dataclass(frozen=True)
class NewWork:
    """Models whose doorbell is to be rung after the commit."""

    model_ids: frozenset[uuid.UUID]
    due_at: datetime
    wait_seconds: float
    """Time until `due_at` by the database's clock."""


@dataclass(frozen=True)
class Stored:
    """Result of storing requests."""

    outcomes: Sequence[Outcome]
    """For each request, in order: its deletion, or the error to raise for it."""
    work: NewWork


@dataclass(frozen=True)
class _Draft:
    """A deletion that is about to be inserted."""

    request: DeletionRequest
    view: DeletionView
    subject_ids: Mapping[str, uuid.UUID | None]
    """By commitment; None for a subject that no model holds."""
    mark: BodyMark | None
    """What a repeated OpenDSR request is compared with."""

    @property
    def id(self) -> uuid.UUID:
        return self.view.deletion.id

    @property
    def binding_at(self) -> datetime:
        deletion = self.view.deletion
        return deletion.binding_at or deletion.received_at

    @property
    def is_pending(self) -> bool:
        return self.view.deletion.status == DeletionStatus.PENDING


def store_deletions(session: Session, requests: Sequence[DeletionRequest], signer: StatementSigner) -> Stored:
    """Create a deletion for each request, in every model that holds what it names.

    If none does, it is completed as soon as it is binding (absences.py): at once if there is no batch window.

    A request that is refused does not hold up the others. An OpenDSR request that was received before, also in this
    very list, yields the deletion that it became.
    """
    require_active(session, signer)
    holdings = find_holdings(
        session,
        lookups=(lookup for request in requests for lookup in request.lookups),
        records=(record for request in requests for record in request.records),
        model_ids=(model_id for request in requests for model_id in request.model_ids or ()),
    )
    received = find_received(session, (request.opendsr for request in requests if request.opendsr))
    received_at = current_time(session)
    outcomes: list[Outcome] = []
    drafts: list[_Draft] = []
    for request in requests:
        outcome = _find_repetition(request, received) or _find_unknown_name(request, holdings)
        if outcome is None:
            draft = _draft(request, holdings, received_at)
            drafts.append(draft)
            outcome = draft.view.as_shown_to_caller(received_at)
            if request.opendsr:
                received[request.opendsr.key] = ReceivedRequest(outcome, draft.mark)
        outcomes.append(outcome)
    _insert_drafts(session, drafts, signer)
    return Stored(outcomes, _new_work(drafts, received_at))


def _new_work(drafts: Sequence[_Draft], received_at: datetime) -> NewWork:
    model_ids = frozenset(target.model_id for draft in drafts for target in draft.view.targets)
    due_at = max((draft.binding_at for draft in drafts), default=received_at)
    return NewWork(model_ids, due_at, (due_at - received_at).total_seconds())


def _find_repetition(
    request: DeletionRequest, received: Mapping[RequestKey, ReceivedRequest]
) -> DeletionView | IdempotencyMismatch | None:
    if request.opendsr is None or request.opendsr.key not in received:
        return None
    return received[request.opendsr.key].answer(request, request.opendsr)


def _find_unknown_name(request: DeletionRequest, holdings: Holdings) -> NotFound | None:
    for model_id in request.model_ids or ():
        if model_id not in holdings.record_counts or not request.allows_model(model_id):
            return NotFound(f"model {model_id} not found; leave `models` out to reach every model")
    for index, record in enumerate(request.records):
        if request.model_ids is not None and record.model_id not in request.model_ids:
            # Otherwise the subjects would be forgotten there as well, against what `models` says.
            return NotFound(
                f"records.{index} belongs to a model that is not in `models`; add it, or leave `models` out"
            )
        is_known = record.record < holdings.record_counts.get(record.model_id, 0)
        if not is_known or not request.allows_model(record.model_id):
            return NotFound(f"records.{index} names an unknown model or record; see the model's registration")
    return None


def _draft(request: DeletionRequest, holdings: Holdings, received_at: datetime) -> _Draft:
    deletion_id = uuid.uuid4()
    subject_ids: dict[str, uuid.UUID | None] = {}
    model_ids = {record.model_id for record in request.records if record in holdings.records}
    for lookup in request.lookups:
        subject = holdings.subjects.get(lookup)
        if subject is None:
            subject_ids[anonymous_commitment()] = None
            continue
        subject_ids[commitment(subject.key, lookup, deletion_id)] = subject.id
        searched = subject.model_ids if request.searched_models is None else request.searched_models
        model_ids.update(set(subject.model_ids).intersection(searched))
    targets = [TargetView(model_id, DeletionStatus.PENDING) for model_id in sorted(model_ids)]
    row = _deletion_row(deletion_id, request, received_at, is_held=bool(targets))
    view = DeletionView(row, sorted(subject_ids), targets, request.records)
    return _Draft(request, view, subject_ids, _mark(request, row.status))


def _mark(request: DeletionRequest, status: str) -> BodyMark | None:
    """Return the mark of an OpenDSR request. Others are marked under their idempotency key."""
    if request.opendsr is None or status != DeletionStatus.PENDING:
        return None
    return mark_body(digest_request(request), request.opendsr.mac)


def _deletion_row(
    deletion_id: uuid.UUID, request: DeletionRequest, received_at: datetime, *, is_held: bool
) -> DeletionRow:
    due_at = deadlines.due(request.regulation, received_at)
    binding_at = deadlines.held_until(received_at, due_at, request.window_seconds)
    is_pending = is_held or binding_at > received_at
    return DeletionRow(
        id=deletion_id,
        caller=request.caller,
        regulation=request.regulation,
        status=DeletionStatus.PENDING if is_pending else DeletionStatus.COMPLETED,
        outcome=None if is_held else _absent_outcome(request),
        request_id=request.request_id,
        callback_urls=list(dict.fromkeys(request.callback_urls)) or None,
        received_at=received_at,
        due_at=due_at,
        completed_at=None if is_pending else received_at,
        body_id=request.body_id,
        binding_at=binding_at,
        models=None if request.searched_models is None else sorted(map(str, set(request.searched_models))),
    )


def _absent_outcome(request: DeletionRequest) -> str:
    no_subject = NO_SUBJECT_HELD if request.searched_models is None else NOT_IN_SEARCHED_MODELS
    return " ".join([no_subject] * bool(request.lookups) + [RECORDS_ERASED] * bool(request.records))


def _insert_drafts(session: Session, drafts: Sequence[_Draft], signer: StatementSigner) -> None:
    """Insert all rows by Core statements: an object for each row would take four times as long."""
    _insert(session, Deletion, (vars(draft.view.deletion) for draft in drafts))
    _insert(session, DeletionSubject, (row for draft in drafts for row in _subject_rows(draft)))
    _insert(session, DeletionRecord, (row for draft in drafts for row in _record_rows(draft)))
    _insert(session, DeletionTarget, (row for draft in drafts for row in _target_rows(draft)))
    _insert(session, OpenDsrRequest, (row for draft in drafts for row in _opendsr_rows(draft)))
    save_marks(session, {draft.request.body_id: draft.mark for draft in drafts if draft.mark})
    _insert(session, AuditEntry, (received_entry(draft.view) for draft in drafts))
    _insert_absences(session, [draft for draft in drafts if not draft.view.targets], signer)


def _insert_absences(session: Session, absent: Sequence[_Draft], signer: StatementSigner) -> None:
    """Store those that are not binding yet for the sweep, and certify the others."""
    # Counted for every request, so that those of held people are not answered sooner.
    model_count = session.scalar(select(func.count()).select_from(Model)) or 0
    model_counts = {draft.id: len(draft.view.deletion.models or ()) or model_count for draft in absent}
    _insert(session, PendingAbsence, (_pending_row(draft, model_counts) for draft in absent if draft.is_pending))
    settled = [draft.view for draft in absent if not draft.is_pending]
    if settled:
        certify_absences(session, settled, model_counts, signer, settled[0].deletion.received_at)
        changes = [outbox.Change(view.deletion, DeletionStatus.PENDING, absent=True) for view in settled]
        outbox.enqueue(session, changes)


def _pending_row(draft: _Draft, model_counts: Mapping[uuid.UUID, int]) -> dict[str, Any]:
    return {"deletion_id": draft.id, "binding_at": draft.binding_at, "models_in_store": model_counts[draft.id]}


def _insert(session: Session, table: type[Base], rows: Iterable[dict[str, Any]]) -> None:
    values = list(rows)
    if values:
        session.execute(insert(cast(Table, table.__table__)), values)


def _subject_rows(draft: _Draft) -> Iterator[dict[str, Any]]:
    for name, subject_id in draft.subject_ids.items():
        yield {"deletion_id": draft.id, "commitment": name, "subject_id": subject_id}


def _record_rows(draft: _Draft) -> Iterator[dict[str, Any]]:
    for record in draft.request.records:
        yield {"deletion_id": draft.id, "model_id": record.model_id, "record": record.record}


def _target_rows(draft: _Draft) -> Iterator[dict[str, Any]]:
    deletion = draft.view.deletion
    times = {"received_at": deletion.received_at, "not_before": draft.binding_at}
    for target in draft.view.targets:
        yield {"deletion_id": draft.id, "model_id": target.model_id, "status": target.status, **times}


def _opendsr_rows(draft: _Draft) -> Iterator[dict[str, Any]]:
    if draft.request.opendsr:
        caller, subject_request_id = draft.request.opendsr.key
        yield {"deletion_id": draft.id, "caller": caller, "subject_request_id": subject_request_id}
