"""Callbacks: what was told to whom, what could not be delivered, and sending it again."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query

from service.resources import ResourcesDep, allowed
from service.schemas.audit import WindowQuery, cursor_of
from service.schemas.callbacks import CallbackEvent, CallbackOut, CallbackPage, callback_out
from service.store.access.tokens import Caller
from service.store.callbacks import outbox
from service.store.states import CallbackStatus, Role

router = APIRouter(prefix="/api/v1/callbacks", tags=["callbacks"])
announced = APIRouter()
"""Not served: what a receiver must serve, for the OpenAPI document."""

CallbackReader = Annotated[Caller, Depends(allowed(Role.OPERATOR, Role.AUDITOR))]
Operator = Annotated[Caller, Depends(allowed(Role.OPERATOR))]


@router.get("", response_model=CallbackPage, summary="The callbacks, newest first")
def list_callbacks(
    caller: CallbackReader,
    resources: ResourcesDep,
    window: WindowQuery,
    status: Annotated[
        list[CallbackStatus], Query(max_length=len(CallbackStatus), description="Any of these; `dead` was given up.")
    ] = [],  # noqa: B006
) -> CallbackPage:
    """One for each change of a deletion's status and each URL that was given for it."""
    with resources.database.reading() as session:
        found = outbox.page(session, status, window)
    return CallbackPage(items=[callback_out(row) for row in found.items], next_cursor=cursor_of(found))


@router.post("/{callback_id}/resend", response_model=CallbackOut, summary="Send a dead callback again")
def resend_callback(callback_id: uuid.UUID, caller: Operator, resources: ResourcesDep) -> CallbackOut:
    """It gets a full set of attempts, under the same id. Later ones may have overtaken it: see its `sequence`."""
    with resources.database.writing() as session:
        return callback_out(outbox.resend(session, callback_id, caller.name))


@announced.post("{$request.body#/callback_urls}", status_code=204, summary="A change of the deletion's status")
def receive_callback(
    body: CallbackEvent,
    x_lethe_key_id: Annotated[str, Header(description="Which of our public keys (`/api/v1/log/keys`) signed it.")],
    x_lethe_signature: Annotated[str, Header(description="Base64 of an Ed25519 signature; see docs/callbacks.md.")],
) -> None:
    """Answer 2xx within ten seconds, or it is sent again: later each time, and in the end given up."""
