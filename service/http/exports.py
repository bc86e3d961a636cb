"""Exports, which take a whole list out of the service: their audit entries, and their end with the token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import structlog
from fastapi.responses import StreamingResponse
from pydantic_core import to_jsonable_python
from starlette.types import Send

from service.http.errors import TokenMissing
from service.store import audit
from service.store.access.tokens import Caller, is_active
from service.store.database import Database

log = structlog.get_logger("exports")
T = TypeVar("T")
ENDED = "the token was revoked or has expired; the export is incomplete"


class Export(StreamingResponse):
    """Stream of an export. If its token ends, so does the connection: the client sees that the export is incomplete."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except TokenMissing:
            log.warning("export.ended")


def record_export(database: Database, caller: Caller, subject: str, filters: Mapping[str, Any]) -> None:
    """Record an export with the filters used. Called before the first row is sent, so that aborted exports count."""
    used = {name: to_jsonable_python(value) for name, value in filters.items() if value not in (None, [], ())}
    with database.writing() as session:
        audit.record(session, caller.name, "export.made", subject, filters=used)


def while_valid(database: Database, caller: Caller, pages: Iterable[T]) -> Iterator[T]:
    """Yield pages as long as the caller's token is valid; then raise TokenMissing."""
    for page in pages:
        with database.reading() as session:
            if not is_active(session, caller.token_id):
                raise TokenMissing(ENDED)
        yield page
