"""`lethe bench intake`: durable POSTs per second, beside a bare handler that inserts one row into the same PostgreSQL.

Both servers run as their own process with the settings of `lethe api`, and are asked in turn by the same client, so
that whatever else the machine does falls on both.
"""

from __future__ import annotations

import asyncio
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
    """So many POSTs to each server in each round, over so many connections."""

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


def show(found: IntakeComparison) -> Table:
    table = Table(title="Durable POSTs, both against the same PostgreSQL")
    for heading in ("", "POSTs a second", "99th percentile, ms"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("bare handler, one row", f"{found.bare_rps:.0f}", f"{found.bare_p99_ms:.1f}")
    table.add_row("POST /api/v1/deletions", f"{found.ours_rps:.0f}", f"{found.ours_p99_ms:.1f}")
    table.add_row("ours over bare", f"{found.ratio:.2f}", f"{found.ours_p99_ms / found.bare_p99_ms:.2f}")
    return table


@dataclass(frozen=True)
class Target:
    port: int
    path: str
    token: str

    def post(self, number: int) -> bytes:
        """One whole request. Both servers get the same bytes but for the path."""
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
        await _round(target, load.connections * 4, load.connections)  # connections, caches and plans warm
    rounds: dict[str, list[Round]] = {"ours": [], "bare": []}
    for number in range(load.rounds):
        pair = [("ours", ours), ("bare", bare)]
        for name, target in pair if number % 2 else reversed(pair):
            rounds[name].append(await _round(target, load.requests, load.connections))
    ours_rps, bare_rps = (statistics.median(one.rps for one in rounds[name]) for name in ("ours", "bare"))
    return IntakeComparison(ours_rps, bare_rps, ours_rps / bare_rps, _p99(rounds["ours"]), _p99(rounds["bare"]))


async def _round(target: Target, requests: int, connections: int) -> Round:
    share = [range(first, requests, connections) for first in range(connections)]
    started = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        taken = await asyncio.gather(*(_connection(target, numbers) for numbers in share))
    seconds = time.perf_counter() - started
    return Round(requests / seconds, [one for times in taken for one in times])


async def _connection(target: Target, numbers: Sequence[int]) -> list[float]:
    """POST after POST over one connection; the milliseconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    taken = []
    for number in numbers:
        request = target.post(number)
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        body = await reader.readexactly(length)
        taken.append((time.perf_counter() - started) * 1e3)
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"{target.path} answered {head[9:12].decode()}: {body[:300].decode()}")
    writer.close()
    await writer.wait_closed()
    return taken


def _p99(rounds: Sequence[Round]) -> float:
    return statistics.quantiles([one for found in rounds for one in found.milliseconds], n=100)[98]


@contextmanager
def _server(serve: Callable[[Settings, socket.socket], None], settings: Settings) -> Iterator[int]:
    """A process that serves on a free port of the loopback. Connections wait in the socket until it has started."""
    # Named TCP: else asyncio leaves Nagle's algorithm on, and 40 ms of waiting in each answer hide what is measured.
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
