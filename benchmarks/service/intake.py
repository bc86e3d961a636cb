"""`lethe bench intake`: durable POST requests per second, against a bare handler that inserts one row.

Both servers use the same PostgreSQL, run as processes with the settings of `lethe api`, and are called in turn by the
same client, so that other load on the machine affects both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.service.database import scratch_postgresql, scratch_redis, scratch_settings
from benchmarks.service.intake_servers import BARE_PATH, OURS_PATH, person, prepare, serve_bare, serve_ours
from service.settings import Settings

PEOPLE = 1_000
"""Subjects of the registered model; each POST names one of them."""
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Load:
    """Rounds, requests per round and server, and concurrent connections."""

    rounds: int
    requests: int
    connections: int


@dataclass(frozen=True)
class IntakeComparison:
    ours_rps: float
    bare_rps: float
    ratio: float
    ours_p99_ms: float
    bare_p99_ms: float


@dataclass(frozen=True)
class Round:
    rps: float
    milliseconds: Sequence[float]


def bench_intake(load: Load) -> IntakeComparison:
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder, scratch_postgresql(Path(folder)) as database:
        settings = scratch_settings(Path(folder), database)
        token = prepare(settings, PEOPLE)
        with (
            scratch_redis(settings.data_dir),
            _server(serve_ours, settings) as ours_port,
            _server(serve_bare, settings) as bare_port,
        ):
            return asyncio.run(_compare(load, Target(ours_port, OURS_PATH, token), Target(bare_port, BARE_PATH, token)))


def show(comparison: IntakeComparison) -> Table:
    table = Table(title="Durable POST requests on the same PostgreSQL")
    for heading in ("", "POSTs per second", "99th percentile, ms"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("bare handler, one row", f"{comparison.bare_rps:.0f}", f"{comparison.bare_p99_ms:.1f}")
    table.add_row("POST /api/v1/deletions", f"{comparison.ours_rps:.0f}", f"{comparison.ours_p99_ms:.1f}")
    table.add_row("ours over bare", f"{comparison.ratio:.2f}", f"{comparison.ours_p99_ms / comparison.bare_p99_ms:.2f}")
    return table


@dataclass(frozen=True)
class Target:
    port: int
    path: str
    token: str

    def post(self, number: int) -> bytes:
        """Return one request. Both servers get the same bytes except for the path."""
        body = json.dumps({"regulation": "gdpr", "subjects": [person(number % PEOPLE)]})
        head = (
            f"POST {self.path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.token}",
            f"Idempotency-Key: {uuid.uuid4()}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join((*head, "", body)).encode()


async def _compare(load: Load, ours: Target, bare: Target) -> IntakeComparison:
    for target in (ours, bare):
        await _round(target, load.connections * 4, load.connections)  # warm-up: connections, caches and plans
    rounds: dict[str, list[Round]] = {"ours": [], "bare": []}
    for number in range(load.rounds):
        pair = [("ours", ours), ("bare", bare)]
        for name, target in pair if number % 2 else reversed(pair):
            rounds[name].append(await _round(target, load.requests, load.connections))
    ours_rps, bare_rps = (statistics.median(result.rps for result in rounds[name]) for name in ("ours", "bare"))
    return IntakeComparison(ours_rps, bare_rps, ours_rps / bare_rps, _p99(rounds["ours"]), _p99(rounds["bare"]))


async def _round(target: Target, requests: int, connections: int) -> Round:
    share = [range(first, requests, connections) for first in range(connections)]
    started = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        times = await asyncio.gather(*(_connection(target, numbers) for numbers in share))
    seconds = time.perf_counter() - started
    return Round(requests / seconds, list(itertools.chain.from_iterable(times)))


async def _connection(target: Target, numbers: Sequence[int]) -> list[float]:
    """Send requests over one connection, and return the milliseconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    times = []
    for number in numbers:
        request = target.post(number)
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        times.append((time.perf_counter() - started) * 1e3)
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"{target.path} answered {head[9:12].decode()}: {body[:300].decode()}")
    writer.close()
    await writer.wait_closed()
    return times


def _p99(rounds: Sequence[Round]) -> float:
    return statistics.quantiles([milliseconds for result in rounds for milliseconds in result.milliseconds], n=100)[98]


@contextmanager
def _server(serve: Callable[[Settings, socket.socket], None], settings: Settings) -> Iterator[int]:
    """Run a server process on a free loopback port. Connections wait in the socket until it has started."""
    # IPPROTO_TCP: without it asyncio leaves Nagle's algorithm on, which adds 40 ms to each response.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(settings, listener), daemon=True)
    process.start()
    try:
        yield listener.getsockname()[1]
    finally:
        process.terminate()
        process.join()
        listener.close()
