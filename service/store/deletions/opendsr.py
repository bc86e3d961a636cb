"""OpenDSR requests and the deletions they became. Bodies are never stored: they hold identities."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.store.deletions.bodies import BodyMark, digest_content, find_marks
from service.store.deletions.requests import DeletionRequest, OpenDsrReference, RequestKey
from service.store.deletions.views import DeletionView, find_view
from service.store.errors import IdempotencyMismatch, NotFound
from service.store.states import DeletionStatus
from service.store.tables import Deletion, OpenDsrRequest

KIND = "opendsr"
ANOTHER_BODY = "this subject_request_id was used before with another body; use a new one"
ENDED = (
    "this subject_request_id was used for a request that has ended, so the bodies can no longer be compared; read its "
    "status with GET, or use a new one"
)

REQUEST_STATUS: dict[DeletionStatus, Literal["pending", "in_progress", "completed", "cancelled"]] = {
    DeletionStatus.PENDING: "pending",
    DeletionStatus.RUNNING: "in_progress",
    DeletionStatus.COMPLETED: "completed",
    DeletionStatus.CANCELLED: "cancelled",
    # OpenDSR has no status for failures: the request stays in progress until a retry or an operator ends it.
    DeletionStatus.FAILED: "in_progress",
}


@dataclass(frozen=True)
class ReceivedRequest:
    """An OpenDSR request that already has a deletion."""

    view: DeletionView
    mark: BodyMark | None

    def answer(self, request: DeletionRequest, reference: OpenDsrReference) -> DeletionView | IdempotencyMismatch:
        """Return the deletion if the request is the same as the first time."""
        if self.mark is None:
            return IdempotencyMismatch(ENDED)
        is_same = self.mark.matches(digest_request(request), reference.mac)
        return self.view if is_same else IdempotencyMismatch(ANOTHER_BODY)


def digest_request(request: DeletionRequest) -> bytes:
    return digest_content(KIND, [request])


def find_received(session: Session, references: Iterable[OpenDsrReference]) -> dict[RequestKey, ReceivedRequest]:
    """Return those of the requests that were received before."""
    keys = [reference.key for reference in references]
    if not keys:
        return {}
    key = tuple_(OpenDsrRequest.caller, OpenDsrRequest.subject_request_id)
    joined = select(OpenDsrRequest, Deletion.body_id).join(Deletion, Deletion.id == OpenDsrRequest.deletion_id)
    rows = session.execute(joined.where(key.in_(keys))).all()
    marks = find_marks(session, [body_id for _, body_id in rows if body_id])
    return {
        (row.caller, row.subject_request_id): ReceivedRequest(
            find_view(session, row.deletion_id, row.caller), marks.get(body_id) if body_id else None
        )
        for row, body_id in rows
    }


def find_request(session: Session, subject_request_id: uuid.UUID, caller: str) -> DeletionView:
    """Return the deletion of a caller's OpenDSR request."""
    row = session.get(OpenDsrRequest, (caller, subject_request_id))
    if row is None:
        raise NotFound(f"request {subject_request_id} not found")
    return find_view(session, row.deletion_id, caller)
