"""What happened to a deletion: as a list, or as it happens (server-sent events)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Header, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from service.resources import DeletionReader, Resources, ResourcesDep, own_only
from service.schemas.deletions import DeletionHistory, event_out
from service.store.deletions.history import Event, History, find_history
from service.store.deletions.lifecycle import find_row

POLL_SECONDS = 1.0
HEARTBEAT_POLLS = 15
"""Proxies close a connection that is silent for half a minute or so."""
EVENT_STREAM = "text/event-stream"
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The history so far; as a stream also what comes, until the deletion has ended.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}


def read_events(
    deletion_id: uuid.UUID,
    caller: DeletionReader,
    resources: ResourcesDep,
    accept: Annotated[str, Header(max_length=1000, description=f"`{EVENT_STREAM}` to follow it.")] = "",
    last_event_id: Annotated[str, Header(max_length=100, description="Sent by a browser that reconnects.")] = "",
) -> DeletionHistory | Response:
    """Oldest first. A stream sends each entry as an event named after its action, and `end` with the last status."""
    with resources.database.reading() as session:
        find_row(session, deletion_id, own_only(caller))
        history = find_history(session, deletion_id)
    if EVENT_STREAM not in accept:
        return DeletionHistory(items=[event_out(event) for event in history.events])
    seen = int(last_event_id) if last_event_id.isascii() and last_event_id.isdigit() else 0
    sent = {event.id for event in history.events if event.id <= seen}
    stream = _follow(resources, deletion_id, history, sent)
    return StreamingResponse(stream, media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})


async def _follow(resources: Resources, deletion_id: uuid.UUID, history: History, sent: set[int]) -> AsyncIterator[str]:
    polls = 0
    while True:
        # By what was sent and not by the highest id: entries are numbered before they are committed.
        for event in history.events:
            if event.id not in sent:
                sent.add(event.id)
                yield _message(event)
        if history.ended:
            yield f"event: end\ndata: {history.status}\n\n"
            return
        await asyncio.sleep(POLL_SECONDS)
        polls += 1
        if polls % HEARTBEAT_POLLS == 0:
            yield f": {history.status}\n\n"
        history = await run_in_threadpool(_look, resources, deletion_id)


def _look(resources: Resources, deletion_id: uuid.UUID) -> History:
    with resources.database.reading() as session:
        return find_history(session, deletion_id)


def _message(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.action}\ndata: {event_out(event).model_dump_json()}\n\n"
