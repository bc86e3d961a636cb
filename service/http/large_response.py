"""Answers of many megabytes, sent in pieces: the event loop copies one piece at a time, at the client's pace."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 1 << 18


class LargeResponse(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for start in range(0, len(view), PIECE_BYTES):
            await send(
                {"type": "http.response.body", "body": bytes(view[start : start + PIECE_BYTES]), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b"", "more_body": False})
