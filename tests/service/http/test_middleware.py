from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.types import Message

from service.http.errors import BodyTooLarge, render_error
from service.http.metrics import Metrics
from service.http.middleware import PIECE_BYTES, BodyLimit, LimitedBody, RequestScope

LIMIT = 10


async def render(request: Request, error: Exception) -> Response:
    return render_error(request, error)


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()

    @app.post("/{name}")
    async def length(request: Request) -> Response:
        return Response(str(len(await request.body())), headers={"X-Seen": request.state.request_id})

    app.add_exception_handler(BodyTooLarge, render_error)
    app.add_middleware(BodyLimit, limit=LIMIT, larger={"/large": 2 * LIMIT}, render_error=render)
    app.add_middleware(RequestScope, metrics=Metrics(), pages=("/page",))
    return app


def post(
    app: FastAPI, path: str, content: bytes | AsyncIterator[bytes] = b"", headers: dict[str, str] | None = None
) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://lethe.example") as client:
            return await client.post(path, content=content, headers=headers)

    return asyncio.run(send())


async def chunks(size: int) -> AsyncIterator[bytes]:
    """A body without Content-Length."""
    for _ in range(size):
        yield b"x"


@pytest.mark.parametrize(("path", "limit"), [("/small", LIMIT), ("/large", 2 * LIMIT)])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_body_over_its_limit_is_refused(app: FastAPI, path: str, limit: int, streamed: bool) -> None:
    def post_bytes(size: int) -> httpx.Response:
        return post(app, path, chunks(size) if streamed else b"x" * size)

    assert post_bytes(limit).text == str(limit)
    refused = post_bytes(limit + 1)
    assert (refused.status_code, refused.json()["type"]) == (413, "urn:lethe:problem:too-large")


def test_a_uuid_of_the_caller_becomes_the_request_id(app: FastAPI) -> None:
    request_id = str(uuid.uuid4())
    answer = post(app, "/small", headers={"X-Request-ID": request_id})
    assert (answer.headers["X-Request-ID"], answer.headers["X-Seen"]) == (request_id, request_id)


@pytest.mark.parametrize("sent", ["", "ada@example.org", "0" * 31, "0123-4567"])
def test_any_other_request_id_is_replaced(app: FastAPI, sent: str) -> None:
    request_id = post(app, "/small", headers={"X-Request-ID": sent}).headers["X-Request-ID"]
    assert uuid.UUID(request_id).hex == request_id


def test_pages_may_run_scripts_and_other_answers_may_not(app: FastAPI) -> None:
    policies = {path: post(app, path).headers["Content-Security-Policy"] for path in ("/page", "/small")}
    assert "script-src 'self'" in policies["/page"]
    assert policies["/small"].startswith("default-src 'none'")


def test_a_large_body_arrives_in_small_pieces_unchanged() -> None:
    content = os.urandom(3 * PIECE_BYTES + 7)
    messages = iter(
        [
            {"type": "http.request", "body": content[:100], "more_body": True},
            {"type": "http.request", "body": content[100:], "more_body": False},
        ]
    )

    async def receive() -> Message:
        return next(messages)

    async def read() -> list[Message]:
        body = LimitedBody(receive, len(content))
        pieces = [await body.receive()]
        while pieces[-1]["more_body"]:
            pieces.append(await body.receive())
        return pieces

    pieces = asyncio.run(read())
    assert b"".join(piece["body"] for piece in pieces) == content
    assert max(len(piece["body"]) for piece in pieces) <= PIECE_BYTES
