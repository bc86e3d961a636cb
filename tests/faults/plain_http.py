"""A minimal HTTP client: sequential POSTs over one connection, where an incomplete response is an error.

A client library would cost more time than the server under test, and its retries would hide faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Raise IncompleteReadError unless the response is complete."""
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status_line, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        response_headers = dict(_parse_headers(lines))
        content = await self.reader.readexactly(int(response_headers["content-length"]))
        return Response(int(status_line.split()[1]), response_headers, content)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def _parse_headers(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()
