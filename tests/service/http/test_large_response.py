from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from service.http.large_response import PIECE_BYTES, LargeResponse


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
def test_the_body_is_sent_in_pieces_with_its_length(size: int) -> None:
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    content = os.urandom(size)
    asyncio.run(LargeResponse(content, status_code=206)({"type": "http"}, lambda: None, send))  # type: ignore[arg-type, return-value]
    start, *parts = messages
    assert start["status"] == 206
    assert (b"content-length", str(size).encode()) in start["headers"]
    assert b"".join(part["body"] for part in parts) == content
    assert max(len(part["body"]) for part in parts) <= PIECE_BYTES
    assert [part["more_body"] for part in parts][-1:] == [False]
