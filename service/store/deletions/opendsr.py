"""OpenDSR requests and the deletions they became. Of the body only a keyed hash is stored: it holds identities."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.store.deletions.views import DeletionView, find_view
from service.store.errors import IdempotencyMismatch, NotFound
from service.store.states import DeletionStatus
from service.store.tables import OpenDsrRequest

REQUEST_STATUS: dict[DeletionStatus, Literal["pending", "in_progress", "completed", "cancelled"]] = {
    DeletionStatus.PENDING: "pending",
    DeletionStatus.RUNNING: "in_progress",
    DeletionStatus.COMPLETED: "completed",
    DeletionStatus.CANCELLED: "cancelled",
    # OpenDSR has no status for failures: the request stays in progress until a retry or an operator ends it.
    DeletionStatus.FAILED: "in_progress",
}
RequestKey = tuple[str, uuid.UUID]
"""Caller and subject_request_id."""


@dataclass(frozen=True)
class OpenDsrReference:
    """An OpenDSR request, by its caller and the id that the caller gave it, with a keyed hash of its body."""

    caller: str
    subject_request_id: uuid.UUID
    body_mac: bytes

    @property
    def key(self) -> RequestKey:
        return self.caller, self.subject_request_id


@dataclass(frozen=True)
class ReceivedRequest:
    """An OpenDSR request that already has a deletion."""

    body_mac: bytes
    view: DeletionView

    def answer(self, reference: OpenDsrReference) -> DeletionView | IdempotencyMismatch:
        """Return the deletion if the body is the same as the first time."""
        if hmac.compare_digest(self.body_mac, reference.body_mac):
            return self.view
        return IdempotencyMismatch("this subject_request_id was used before with another body; use a new one")


def find_received(session: Session, references: Iterable[OpenDsrReference]) -> dict[RequestKey, ReceivedRequest]:
    """Return those of the requests that were received before."""
    keys = [reference.key for reference in references]
    if not keys:
        return {}
    key = tuple_(OpenDsrRequest.caller, OpenDsrRequest.subject_request_id)
    rows = session.scalars(select(OpenDsrRequest).where(key.in_(keys))).all()
    return {
        (row.caller, row.subject_request_id): ReceivedRequest(
            row.body_mac, find_view(session, row.deletion_id, row.caller)
        )
        for row in rows
    }


def find_request(session: Session, subject_request_id: uuid.UUID, caller: str) -> DeletionView:
    """Return the deletion of a caller's OpenDSR request."""
    row = session.get(OpenDsrRequest, (caller, subject_request_id))
    if row is None:
        raise NotFound(f"request {subject_request_id} not found")
    return find_view(session, row.deletion_id, caller)
