"""HTTP/1.1 of the API: uvicorn's h11 protocol with limits on slow clients, and without ambiguous requests."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, NamedTuple

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.http.addresses import client_key
from service.http.connections import Connections
from service.http.errors import BAD_REQUEST, SECURITY_HEADERS, Problem, problem_body

SLOWEST_BYTES_PER_SECOND = 1_000
LARGEST_HEADER = 16 << 10
END_OF_HEADER = re.compile(rb"\n\r?\n")
CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:", re.IGNORECASE | re.MULTILINE)


class StrictConnection(h11.Connection):
    """Refuses requests whose length two parsers could read differently: a proxy in front may be the other one."""

    def next_event(self) -> Any:
        header = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            lengths = len(CONTENT_LENGTH.findall(END_OF_HEADER.split(header, 1)[0]))
            is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            if lengths + is_chunked > 1 or (is_chunked and event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("ambiguous length")
        return event


class Mark(NamedTuple):
    """Progress of a connection at one time."""

    cycle: RequestResponseCycle | None
    received: int
    unsent: int
    """Bytes of the answer that wait for the client. 0 if there are none, or if the wait is not the client's fault."""
    is_receiving: bool


class GuardedProtocol(H11Protocol):
    """One connection, which `connections` may close."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection(h11.SERVER, LARGEST_HEADER)
        self.host = self.address = ""
        self._guard = connections
        self._received = 0
        self._header_since: float | None = time.monotonic()
        self._mark = Mark(None, 0, 0, False)
        self._marked_at = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Writing pauses as soon as the client does not keep up, so that unsent bytes only decrease until it does.
        transport.set_write_buffer_limits(high=0)
        self.host = self.client[0] if self.client else ""
        self.address = client_key(self.host)
        if not self._guard.admit(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if not self._is_idle():
            self._header_since = None
            self._guard.work(self)
        elif self._header_since is None:
            self._header_since = time.monotonic()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle():
            self._guard.wait(self)

    def resume_writing(self) -> None:
        self._mark = self._mark._replace(unsent=0)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request in the API's own format."""
        self._guard.count("malformed")
        body = json.dumps(problem_body(BAD_REQUEST, "the request is not valid HTTP/1.1, or its length is ambiguous"))
        facts = {"Content-Type": Problem.media_type, "Content-Length": str(len(body)), "Connection": "close"}
        headers = list({**SECURITY_HEADERS, **facts}.items())
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=body.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def is_too_slow(self, now: float) -> bool:
        limits = self._guard.limits
        if self._header_since is not None and now - self._header_since > limits.header_seconds:
            return True
        seconds = now - self._marked_at
        if seconds < limits.progress_seconds:
            return False
        before, self._mark, self._marked_at = self._mark, self._progress(), now
        return _stalls(before, self._mark, SLOWEST_BYTES_PER_SECOND * seconds)

    def drop(self) -> None:
        self.transport.abort()

    def _is_idle(self) -> bool:
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.IDLE

    def _progress(self) -> Mark:
        is_receiving = (
            self.conn.their_state is h11.SEND_BODY
            and not self.flow.read_paused
            and not self.conn.they_are_waiting_for_100_continue
        )
        return Mark(self.cycle, self._received, self.transport.get_write_buffer_size(), is_receiving)


def _stalls(before: Mark, after: Mark, least_bytes: float) -> bool:
    is_receiving = before.is_receiving and after.is_receiving and before.cycle is after.cycle
    is_sending = min(before.unsent, after.unsent) > 0
    return (is_receiving and after.received - before.received < least_bytes) or (
        is_sending and before.unsent - after.unsent < least_bytes
    )
