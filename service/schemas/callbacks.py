"""What goes over the wire for callbacks: the list that operators see, and what a receiver is sent."""

from __future__ import annotations

import uuid
from datetime import datetime

from pydantic import BaseModel, Field

from service.store.callbacks.outbox import host_of
from service.store.states import CallbackStatus, DeletionStatus
from service.store.tables import Callback


class CallbackOut(BaseModel):
    id: uuid.UUID = Field(description="The event's id, which the receiver sees too.")
    deletion_id: uuid.UUID
    sequence: int = Field(description="Counts the callbacks of the deletion.")
    host: str = Field(description="Of the URL. The rest of it may hold secrets and is not shown.")
    told: DeletionStatus = Field(description="The status of the deletion that the receiver is told.")
    status: CallbackStatus
    attempts: int
    next_attempt_at: datetime | None = Field(description="Not before then. Null unless it is pending.")
    failure: str | None = Field(description="Why the last attempt failed, in plain words.")
    created_at: datetime
    delivered_at: datetime | None


class CallbackPage(BaseModel):
    items: list[CallbackOut] = Field(description="Newest first.")
    next_cursor: str | None = Field(description="Null on the last page.")


class CallbackEvent(BaseModel):
    """The body of a callback, canonical JSON (RFC 8785). It names no person."""

    id: uuid.UUID = Field(description="Of this event. What you have seen before is a repetition: answer 2xx again.")
    sequence: int = Field(description="Grows from event to event of a deletion, not always by one.")
    deletion_id: uuid.UUID
    deletion: str = Field(description="Where to read the deletion.")
    status: DeletionStatus
    occurred_at: datetime
    due_at: datetime
    certificates: list[str] = Field(description="Where to download the certificates issued so far.")
    absence: str | None = Field(description="Where to download the certificate that no model held the subject.")


def callback_out(row: Callback) -> CallbackOut:
    return CallbackOut(
        id=row.id,
        deletion_id=row.deletion_id,
        sequence=row.sequence,
        host=host_of(row.url),
        told=DeletionStatus(row.message["status"]),
        status=CallbackStatus(row.status),
        attempts=row.attempts,
        next_attempt_at=row.not_before if row.status == CallbackStatus.PENDING else None,
        failure=row.failure,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
    )
