"""Callbacks: list of those sent and failed, and resending."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query

from service.resources import Operator, ResourcesDep, require_role
from service.schemas.callbacks import CallbackEvent, CallbackOut, CallbackPage, callback_out
from service.schemas.paging import WindowQuery, next_cursor
from service.store.access.tokens import Caller
from service.store.callbacks import outbox
from service.store.states import CallbackStatus, Role

router = APIRouter(prefix="/api/v1/callbacks", tags=["callbacks"])
receiver = APIRouter()
"""Not served: documents in OpenAPI what a receiver must serve."""

CallbackReader = Annotated[Caller, Depends(require_role(Role.OPERATOR, Role.AUDITOR))]


@router.get("", response_model=CallbackPage, summary="List callbacks")
def list_callbacks(
    caller: CallbackReader,
    resources: ResourcesDep,
    window: WindowQuery,
    status: Annotated[
        list[CallbackStatus],
        Query(max_length=len(CallbackStatus), description="Any of these. `dead`: all attempts failed."),
    ] = [],  # noqa: B006
) -> CallbackPage:
    """One per change of a deletion's status and callback URL. Newest first."""
    with resources.database.reading() as session:
        page = outbox.find_callback_page(session, status, window)
    return CallbackPage(items=[callback_out(row) for row in page.items], next_cursor=next_cursor(page))


@router.post("/{callback_id}/resend", response_model=CallbackOut, summary="Resend a dead callback")
def resend_callback(callback_id: uuid.UUID, caller: Operator, resources: ResourcesDep) -> CallbackOut:
    """It gets all attempts again, under the same id. Later callbacks may have been delivered before: see `sequence`."""
    with resources.database.writing() as session:
        return callback_out(outbox.resend(session, callback_id, caller.name))


@receiver.post("{$request.body#/callback_urls}", status_code=204, summary="Change of a deletion's status")
def receive_callback(
    body: CallbackEvent,
    x_lethe_key_id: Annotated[str, Header(description="Id of the public key (`/api/v1/log/keys`) that signed it.")],
    x_lethe_signature: Annotated[
        str, Header(description="Base64 of an Ed25519 signature; see docs/reference/callbacks.md.")
    ],
) -> None:
    """Answer 2xx within ten seconds. Otherwise it is sent again, at growing intervals, and finally marked dead."""
