"""One POST after another over one connection, byte by byte as they come: a connection that ends early is an error.

By hand, because a client library's pool costs more than the server under test, and mends what shall be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
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

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Raises IncompleteReadError unless the answer is whole."""
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        found = dict(_headers(rest))
        return Answer(int(first.split()[1]), found, await self.reader.readexactly(int(found["content-length"])))

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def _headers(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()
