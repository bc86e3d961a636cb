"""History of a deletion, as a list or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Header, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from service.resources import DeletionReader, Resources, ResourcesDep, visible_owner
from service.schemas.deletions import DeletionHistory, event_out
from service.store.access.tokens import Caller, is_active
from service.store.deletions.history import Event, History, find_history
from service.store.deletions.views import find_deletion

POLL_SECONDS = 1.0
HEARTBEAT_POLLS = 15
"""Proxies close connections that are silent for about half a minute."""
NO_LONGER_VALID = "the token was revoked or has expired"
EVENT_STREAM = "text/event-stream"
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The history so far. A stream continues until the deletion has ended.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}


def read_events(
    deletion_id: uuid.UUID,
    caller: DeletionReader,
    resources: ResourcesDep,
    accept: Annotated[str, Header(max_length=1000, description=f"`{EVENT_STREAM}` for a stream.")] = "",
    last_event_id: Annotated[str, Header(max_length=100, description="Sent by browsers when they reconnect.")] = "",
) -> DeletionHistory | Response:
    """Oldest first. A stream sends each entry as an event named after its action, and finally `end` with the status.

    A stream whose token is revoked or expires ends within seconds with the event `refused`.
    """
    with resources.database.reading() as session:
        find_deletion(session, deletion_id, visible_owner(caller))
        history = find_history(session, deletion_id)
    if EVENT_STREAM not in accept:
        return DeletionHistory(items=[event_out(event) for event in history.events])
    last_id = int(last_event_id) if last_event_id.isascii() and last_event_id.isdigit() else 0
    sent_ids = {event.id for event in history.events if event.id <= last_id}
    stream = _follow(resources, deletion_id, caller, history, sent_ids)
    return StreamingResponse(stream, media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})


async def _follow(
    resources: Resources, deletion_id: uuid.UUID, caller: Caller, history: History | None, sent_ids: set[int]
) -> AsyncIterator[str]:
    polls = 0
    while history is not None:
        # By the ids sent and not by the highest one: entries are numbered before they are committed.
        for event in history.events:
            if event.id not in sent_ids:
                sent_ids.add(event.id)
                yield _message(event)
        if history.ended:
            yield f"event: end\ndata: {history.status}\n\n"
            return
        await asyncio.sleep(POLL_SECONDS)
        polls += 1
        if polls % HEARTBEAT_POLLS == 0:
            yield f": {history.status}\n\n"
        history = await run_in_threadpool(_read_history, resources, deletion_id, caller)
    yield f"event: refused\ndata: {NO_LONGER_VALID}\n\n"


def _read_history(resources: Resources, deletion_id: uuid.UUID, caller: Caller) -> History | None:
    """Return the history so far. None if the token was revoked or has expired since the stream began."""
    with resources.database.reading() as session:
        return find_history(session, deletion_id) if is_active(session, caller.token_id) else None


def _message(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.action}\ndata: {event_out(event).model_dump_json()}\n\n"
