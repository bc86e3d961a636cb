"""Schemas of callbacks: the list that operators see, and the body that receivers get."""

from __future__ import annotations

import uuid
from datetime import datetime

from pydantic import BaseModel, Field

from service.store.callbacks.outbox import host_of
from service.store.states import CallbackStatus, DeletionStatus
from service.store.tables import Callback


class CallbackOut(BaseModel):
    id: uuid.UUID = Field(description="Id of the event, which the receiver sees too.")
    deletion_id: uuid.UUID
    sequence: int = Field(description="Number of the callback within its deletion.")
    host: str = Field(description="Host of the URL. The rest may hold secrets and is not shown.")
    deletion_status: DeletionStatus = Field(alias="told", description="Status of the deletion that it reports.")
    status: CallbackStatus
    attempts: int
    next_attempt_at: datetime | None = Field(description="Earliest time of the next attempt. Null unless pending.")
    failure: str | None = Field(description="Why the last attempt failed.")
    created_at: datetime
    delivered_at: datetime | None


class CallbackPage(BaseModel):
    items: list[CallbackOut] = Field(description="Newest first.")
    next_cursor: str | None = Field(description="Null on the last page.")


class CallbackEvent(BaseModel):
    """Body of a callback as canonical JSON (RFC 8785). It contains no personal data."""

    id: uuid.UUID = Field(description="Id of the event. An id that you have seen is a repetition: answer 2xx again.")
    sequence: int = Field(description="Increases with each event of a deletion, not always by one.")
    deletion_id: uuid.UUID
    deletion: str = Field(description="Path of the deletion.")
    status: DeletionStatus
    occurred_at: datetime
    due_at: datetime
    certificates: list[str] = Field(description="Paths of the certificates issued so far.")
    absence: str | None = Field(description="Path of the certificate that no model held the subject.")


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
