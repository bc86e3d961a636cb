"""Middleware of every request: id, log line, metrics, and the limit on the body."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.errors import SECURITY_HEADERS, BodyTooLarge
from service.http.metrics import Metrics

log = structlog.get_logger("http")
PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "worker-src blob:; frame-ancestors 'none'"
)
"""For pages: scripts come from this server, and no other server is contacted."""
PIECE_BYTES = 1 << 15
"""Bytes of a body that are parsed in one go. A form can begin thousands of parts in them."""
POLICY = "Content-Security-Policy"
"""A route may set its own, less strict policy."""
RenderError = Callable[[Request, Exception], Awaitable[Response]]
"""Renders an error raised before routing."""
# The id is stored and logged, so it must not be able to contain an address or a telephone number.
REQUEST_ID = re.compile(r"[0-9a-f]{8}(-?)([0-9a-f]{4}\1){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


class RequestScope:
    """Assigns an id to each request (or takes the caller's UUID), binds it to the logs, and logs the outcome."""

    def __init__(self, app: ASGIApp, metrics: Metrics, pages: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                policy = PAGE_POLICY if scope["path"] in self._pages else headers.get(POLICY)
                headers.update({"X-Request-ID": request_id, **SECURITY_HEADERS, **({POLICY: policy} if policy else {})})
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # The template, never the path itself, which may contain an identity.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in {"GET", "POST", "PUT", "DELETE", "HEAD"} else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.latency.labels(method, route).observe(seconds)
        log.info("request", method=method, route=route, status=status, milliseconds=round(seconds * 1000, 2))


class BodyLimit:
    """Refuses a body over the limit: at once by its Content-Length, else when the limit is reached."""

    def __init__(self, app: ASGIApp, limit: int, larger: Mapping[str, int], render_error: RenderError) -> None:
        self._app = app
        self._limit = limit
        self._larger = larger
        """Limits of the paths that accept larger bodies."""
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(scope["path"], self._limit)
        content_length = Headers(scope=scope).get("content-length", "0")
        if content_length.isdigit() and int(content_length) > limit:
            response = await self._render_error(Request(scope), BodyTooLarge(limit))
            await response(scope, receive, send)
            return
        await self._app(scope, LimitedBody(receive, limit).receive, send)


class LimitedBody:
    """Body of a request in small pieces, between which other requests get their turn."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._received = 0
        self._remaining = memoryview(b"")
        self._more_body = True

    async def receive(self) -> Message:
        if not self._remaining:
            message = await self._receive()
            body = message.get("body", b"")
            self._received += len(body)
            if self._received > self._limit:
                raise BodyTooLarge(self._limit)
            if len(body) <= PIECE_BYTES:
                return message
            self._remaining, self._more_body = memoryview(body), message.get("more_body", False)
        else:
            await asyncio.sleep(0)
        piece, self._remaining = self._remaining[:PIECE_BYTES], self._remaining[PIECE_BYTES:]
        return {"type": "http.request", "body": bytes(piece), "more_body": bool(self._remaining) or self._more_body}
