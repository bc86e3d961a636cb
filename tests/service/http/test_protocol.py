"""Real sockets: slow clients, ambiguous requests, and far too many connections."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from service.http import connections
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests.service.conftest import Api, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
HALF = b"POST /api/v1/deletions HTTP/1.1\r\nHost: lethe\r\n"
SECONDS = 0.3


@pytest.fixture
def api(settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A server that is impatient enough for tests."""
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)
    impatient = {"header_seconds": SECONDS, "progress_seconds": SECONDS, "idle_seconds": 1}
    with serving(settings.model_copy(update=impatient), database) as served:
        yield served


def connect(api: Api, source: str = "127.0.0.1") -> socket.socket:
    server = urlsplit(api.url)
    return socket.create_connection((server.hostname, server.port), timeout=20, source_address=(source, 0))


def read_all(connection: socket.socket) -> bytes:
    """Return what arrives until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_header_that_does_not_arrive_ends_the_connection(api: Api, sent: bytes) -> None:
    with connect(api) as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""


def test_a_header_that_arrives_byte_by_byte_ends_the_connection(api: Api) -> None:
    def send_slowly(connection: socket.socket) -> None:
        for byte in HALF * 100:
            connection.sendall(bytes([byte]))
            time.sleep(0.01)

    with connect(api) as connection, pytest.raises(ConnectionError):
        send_slowly(connection)


def test_a_second_header_on_a_connection_must_arrive_too(api: Api) -> None:
    with connect(api) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: lethe\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(HALF)
        assert read_all(connection).count(b"HTTP/1.1") == 0


def test_a_body_without_progress_ends_the_connection(api: Api) -> None:
    token = api.tokens[Role.COMPLIANCE].encode()
    with connect(api) as connection:
        connection.sendall(HALF + b"Authorization: Bearer " + token + b"\r\nContent-Length: 1000\r\n\r\n{")
        assert b"HTTP/1.1 2" not in read_all(connection)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_crash(api: Api) -> None:
    token = api.tokens[Role.COMPLIANCE].encode()
    with capture_logs() as lines:
        with connect(api) as connection:
            connection.sendall(HALF + b"Authorization: Bearer " + token + b"\r\nContent-Length: 1000\r\n\r\n{")
        wait_until(lambda: [line for line in lines if line["event"] == "request"], "the request has ended")
        api.call(None, "GET", "/healthz")  # a crash would be logged before the loop serves the next request
    assert [line for line in lines if line["event"] == "request.crashed"] == []


def test_a_slow_body_that_makes_progress_is_read(api: Api) -> None:
    token = api.tokens[Role.COMPLIANCE].encode()
    body = b" " * 8_000 + json.dumps({"subjects": [{"identity_type": "email", "identity_value": "a"}]}).encode()
    with connect(api) as connection:
        head = HALF + b"Authorization: Bearer " + token + b"\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 400):
            connection.sendall(body[start : start + 400])
            time.sleep(0.05)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_an_answer_that_nobody_reads_ends_the_connection(api: Api) -> None:
    def send_only(connection: socket.socket) -> None:
        for _ in range(100_000):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: lethe\r\n\r\n")

    with connect(api) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.2)
        with pytest.raises((TimeoutError, ConnectionError)):
            send_only(connection)
        wait_until(lambda: _is_reset(connection), "the server has closed the connection")


def _is_reset(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0 or _send_fails(connection)


def _send_fails(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"\r\n")
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


CHUNKS_IN_1_0 = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "the same length twice": b"content-length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": b"Content-Length: 5, 6\r\n\r\nhello",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked, identity\r\n\r\n0\r\n\r\n",
    "a signed length": b"Content-Length: +5\r\n\r\nhello",
    "no colon": b"Content-Length 5\r\n\r\nhello",
    "two hosts": b"Host: other\r\n\r\n",
}


def test_an_ambiguous_request_is_refused(api: Api) -> None:
    requests = {name: HALF + rest for name, rest in AMBIGUOUS.items()}
    for name, request in {**requests, "chunks in 1.0": CHUNKS_IN_1_0}.items():
        with connect(api) as connection:
            connection.sendall(request)
            head, body = read_all(connection).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request"), name
        assert json.loads(body)["type"] == "urn:lethe:problem:bad-request", name


def test_length_in_the_body_does_not_count(api: Api) -> None:
    with connect(api) as connection:
        connection.sendall(HALF + b"Content-Length: 19\r\nConnection: close\r\n\r\n\nContent-Length: 5\n")
        assert read_all(connection).startswith(b"HTTP/1.1 401")


def test_half_open_connections_keep_nobody_out(settings: Settings, database: Database) -> None:
    with serving(settings, database) as api, ExitStack() as stack:
        for _ in range(1_200):
            stack.enter_context(connect(api)).sendall(HALF)
        body = {"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]}
        for method, path, options, status in (
            ("GET", "/healthz", {}, 200),
            ("POST", "/api/v1/deletions", {"json": body}, 201),
        ):
            assert min(timed(api, method, path, options, status) for _ in range(3)) < 1


def timed(api: Api, method: str, path: str, options: dict[str, object], status: int) -> float:
    started = time.monotonic()
    assert api.call(Role.COMPLIANCE, method, path, **options).status_code == status
    return time.monotonic() - started
