"""A TCP relay in front of PostgreSQL, in a process of its own. Stopping it looks like a network that drops packets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import make_url

CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Relay:
    process: subprocess.Popen[str]
    url: str
    """URL of the database through the relay."""


@contextmanager
def relaying(url: str) -> Iterator[Relay]:
    """Run a relay to the PostgreSQL server of this URL."""
    target = make_url(url)
    host, port = str(target.query.get("host") or target.host), target.port or 5432
    command = [sys.executable, "-m", "tests.faults.tcp_relay", host, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        relayed = target.difference_update_query(["host"]).set(host="127.0.0.1", port=int(process.stdout.readline()))
        try:
            yield Relay(process, relayed.render_as_string(hide_password=False))
        finally:
            process.kill()


async def _serve(host: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await _connect(host, port)
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect like PostgreSQL's clients: a host that is a path is the folder of a socket."""
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(CHUNK_BYTES):
            writer.write(content)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
