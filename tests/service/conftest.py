from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
import uvicorn

from service.app import create_app
from service.http.server import server_config
from service.settings import Settings
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.states import Role
from tests.waiting import wait_until

# One client for all tests: creating one loads the certificate authorities, which takes a tenth of a second.
# It keeps no connections, since each test has its own server.
CLIENT = httpx.Client(timeout=30, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(frozen=True)
class Api:
    """A real server on a real port, with a token for each role."""

    url: str
    tokens: dict[Role, str]

    def call(
        self, role: Role | None, method: str, path: str, headers: dict[str, str] | None = None, **options: object
    ) -> httpx.Response:
        request_headers = dict(headers or {})
        if role is not None:
            request_headers["Authorization"] = f"Bearer {self.tokens[role]}"
        return CLIENT.request(method, self.url + path, headers=request_headers, **options)  # type: ignore[arg-type]


@pytest.fixture
def api(settings: Settings, database: Database) -> Iterator[Api]:
    with serving(settings, database) as served:
        yield served


@pytest.fixture
def patient_api(settings: Settings, database: Database) -> Iterator[Api]:
    """An API with a batch window so long that deletions can be cancelled during the test."""
    with serving(settings.model_copy(update={"batch_window_seconds": 3600.0}), database) as served:
        yield served


@contextmanager
def serving(settings: Settings, database: Database) -> Iterator[Api]:
    with database.writing() as session:
        tokens = {role: issue_token(session, f"acme-{role}", role, actor="test") for role in Role}
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(create_app(settings), settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started, "the API listens")
    try:
        yield Api(f"http://127.0.0.1:{listener.getsockname()[1]}", tokens)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
