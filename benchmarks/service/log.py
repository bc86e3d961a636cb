"""`lethe bench log`: growth of the transparency log on PostgreSQL, and the cost of a proof in a large log.

An append covers the committed insert of the audit entry, its sequencing and hashing, and a signed checkpoint.
"""

from __future__ import annotations

import random
import secrets
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.table import Table
from sqlalchemy import Table as SqlTable
from sqlalchemy import event, insert

from benchmarks.service.database import scratch_postgresql, scratch_settings
from lethe.progress import OnProgress, stages
from lethe.verify import verify
from service.settings import Settings
from service.store import migrate
from service.store.certificates.bundles import find_receipt
from service.store.database import Database
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.log import sequencing
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry

SIZES = (1_000, 10_000, 100_000, 1_000_000)
AT_ONCE = 5_000
"""Entries per transaction and checkpoint: what a sweep finds after a second of heavy intake."""
ROUNDS = 200


@dataclass(frozen=True)
class Size:
    """Measurements at one size of the log; times are medians over random entries."""

    entries: int
    appends_per_second: float
    proof_ms: float
    tiles_read: float
    proof_length: float
    verify_ms: float


@dataclass(frozen=True)
class LogGrowth:
    entries: int
    appends_per_second: float
    proof_ms: float
    verify_ms: float
    growth: Sequence[Size]


@dataclass(frozen=True)
class Bench:
    database: Database
    signer: StatementSigner


def bench_log(entries: int) -> LogGrowth:
    with (
        tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder,
        scratch_postgresql(Path(folder)) as url,
        stages() as bar,
        _open_bench(scratch_settings(Path(folder), url)) as bench,
    ):
        growth: list[Size] = []
        seconds, report = 0.0, bar("Log")
        for size in sorted({*(size for size in SIZES if size < entries), entries}):
            before = growth[-1].entries if growth else 0
            append_seconds = _grow(bench, before, size, entries, report)
            growth.append(_measure(bench, size, (size - before) / append_seconds))
            seconds += append_seconds
    last = growth[-1]
    return LogGrowth(last.entries, entries / seconds, last.proof_ms, last.verify_ms, growth)


def show(result: LogGrowth) -> Table:
    table = Table(title="The log at growing sizes")
    for heading in ("entries", "appends/s", "proof, ms", "tiles read", "hashes", "verify, ms"):
        table.add_column(heading, justify="right")
    for row in result.growth:
        counts = f"{row.tiles_read:g}", f"{row.proof_length:g}"
        table.add_row(
            f"{row.entries:,}", f"{row.appends_per_second:,.0f}", f"{row.proof_ms:.2f}", *counts, f"{row.verify_ms:.2f}"
        )
    return table


@contextmanager
def _open_bench(settings: Settings) -> Iterator[Bench]:
    database = Database(settings.database)
    try:
        migrate.upgrade(database)
        yield Bench(database, open_signer(settings, database))
    finally:
        database.close()


def _grow(bench: Bench, before: int, size: int, last: int, report: OnProgress) -> float:
    """Append until there are `size` entries, and return the seconds."""
    seconds = 0.0
    for start in range(before, size, AT_ONCE):
        report(f"{start:,} entries", start / last)
        rows = [_entry() for _ in range(min(AT_ONCE, size - start))]
        started = time.perf_counter()
        with bench.database.writing() as session:
            session.execute(insert(cast(SqlTable, AuditEntry.__table__)), rows)
        with bench.database.writing() as session:
            sequencing.sequence_entries(session, bench.signer)
        seconds += time.perf_counter() - started
    report(f"{size:,} entries", size / last)
    return seconds


def _entry() -> dict[str, Any]:
    """Return an entry like the one that intake writes."""
    details = {"subjects": [secrets.token_hex(32)]}
    return {"actor": "bench", "action": "deletion.received", "concerns": str(uuid.uuid4()), "details": details}


def _measure(bench: Bench, entries: int, rate: float) -> Size:
    bundle, keys = _receipt(bench), bench.signer.public_pem.encode()
    verified = [_milliseconds(lambda: verify(bundle, keys)) for _ in range(ROUNDS)]
    draw, times, tiles, lengths = random.Random(0), [], [], []  # noqa: S311
    with bench.database.reading() as session, _tile_reads(bench.database) as reads:
        for _ in range(ROUNDS):
            index = draw.randrange(entries)
            reads.clear()
            started = time.perf_counter()
            inclusion = sequencing.prove_inclusion(session, index, entries)
            times.append(1000 * (time.perf_counter() - started))
            tiles.append(len(reads))
            lengths.append(len(inclusion.proof))
    medians = [statistics.median(column) for column in (times, tiles, lengths, verified)]
    return Size(entries, rate, *medians)


def _receipt(bench: Bench) -> bytes:
    """Return a receipt with its inclusion proof, as a caller downloads it."""
    request = DeletionRequest("bench", "gdpr", [secrets.token_bytes(32)], None, "bench", window_seconds=0.0)
    with bench.database.writing() as session:
        (view,) = store_deletions(session, [request], bench.signer).outcomes
        if not isinstance(view, DeletionView):
            raise view
        sequencing.sequence_entries(session, bench.signer)
    with bench.database.reading() as session:
        return find_receipt(session, view.deletion.id, None, bench.signer).encode()


def _milliseconds(action: Any) -> float:
    started = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - started)


@contextmanager
def _tile_reads(database: Database) -> Iterator[list[str]]:
    """Collect every statement that reads a tile."""
    reads: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "log_tiles" in statement:
            reads.append(statement)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield reads
    finally:
        event.remove(database.engine, "before_cursor_execute", record)
