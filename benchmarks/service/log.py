"""`lethe bench log`: how the transparency log grows on PostgreSQL, and what a proof costs when it is large.

An append is measured whole: the audit entry inserted and committed, then placed, hashed and covered by a signed
checkpoint.
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
from service.store.deletions.creation import NewDeletion, create
from service.store.log import sequencing as log
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry

SIZES = (1_000, 10_000, 100_000, 1_000_000)
AT_ONCE = 5_000
"""Entries in a transaction, and in a checkpoint: as a sweep finds them after a second of heavy intake."""
ROUNDS = 200


@dataclass(frozen=True)
class Size:
    """What was found at one size of the log; times are medians over random entries."""

    entries: int
    appends_per_second: float
    proof_ms: float
    tiles_read: float
    proof_length: float
    verify_ms: float


@dataclass(frozen=True)
class Grown:
    entries: int
    appends_per_second: float
    proof_ms: float
    verify_ms: float
    growth: Sequence[Size]


@dataclass(frozen=True)
class Bench:
    database: Database
    signer: StatementSigner


def bench_log(entries: int) -> Grown:
    with (
        tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder,
        scratch_postgresql(Path(folder)) as url,
        stages() as bar,
        _opened(scratch_settings(Path(folder), url)) as bench,
    ):
        growth: list[Size] = []
        seconds, report = 0.0, bar("Log")
        for size in sorted({*(size for size in SIZES if size < entries), entries}):
            before = growth[-1].entries if growth else 0
            taken = _grow(bench, before, size, entries, report)
            growth.append(_measured(bench, size, (size - before) / taken))
            seconds += taken
    last = growth[-1]
    return Grown(last.entries, entries / seconds, last.proof_ms, last.verify_ms, growth)


def show(found: Grown) -> Table:
    table = Table(title="The log as it grows")
    for heading in ("entries", "appends/s", "proof, ms", "tiles read", "hashes in it", "verify, ms"):
        table.add_column(heading, justify="right")
    for row in found.growth:
        counts = f"{row.tiles_read:g}", f"{row.proof_length:g}"
        table.add_row(
            f"{row.entries:,}", f"{row.appends_per_second:,.0f}", f"{row.proof_ms:.2f}", *counts, f"{row.verify_ms:.2f}"
        )
    return table


@contextmanager
def _opened(settings: Settings) -> Iterator[Bench]:
    database = Database(settings.database)
    try:
        migrate.upgrade(database)
        yield Bench(database, open_signer(settings, database))
    finally:
        database.close()


def _grow(bench: Bench, before: int, size: int, last: int, report: OnProgress) -> float:
    """Append until there are `size`; the seconds that it took."""
    taken = 0.0
    for start in range(before, size, AT_ONCE):
        report(f"{start:,} entries", start / last)
        rows = [_entry() for _ in range(min(AT_ONCE, size - start))]
        started = time.perf_counter()
        with bench.database.writing() as session:
            session.execute(insert(cast(SqlTable, AuditEntry.__table__)), rows)
        with bench.database.writing() as session:
            log.sequence(session, bench.signer)
        taken += time.perf_counter() - started
    report(f"{size:,} entries", size / last)
    return taken


def _entry() -> dict[str, Any]:
    """As the intake of a deletion writes it."""
    details = {"subjects": [secrets.token_hex(32)]}
    return {"actor": "bench", "action": "deletion.received", "concerns": str(uuid.uuid4()), "details": details}


def _measured(bench: Bench, entries: int, rate: float) -> Size:
    bundle, keys = _receipt(bench), bench.signer.public_pem.encode()
    verified = [_milliseconds(lambda: verify(bundle, keys)) for _ in range(ROUNDS)]
    draw, times, tiles, lengths = random.Random(0), [], [], []  # noqa: S311
    with bench.database.reading() as session, _counted(bench.database) as reads:
        for _ in range(ROUNDS):
            index = draw.randrange(entries)
            reads.clear()
            started = time.perf_counter()
            found = log.inclusion(session, index, entries)
            times.append(1000 * (time.perf_counter() - started))
            tiles.append(len(reads))
            lengths.append(len(found.proof))
    medians = [statistics.median(column) for column in (times, tiles, lengths, verified)]
    return Size(entries, rate, *medians)


def _receipt(bench: Bench) -> bytes:
    """A receipt with its place in the log, as a caller downloads it."""
    new = NewDeletion("bench", "gdpr", [secrets.token_bytes(32)], None, "bench", window_seconds=0.0)
    with bench.database.writing() as session:
        deletion_id = create(session, new, bench.signer).deletion.id
        log.sequence(session, bench.signer)
    with bench.database.reading() as session:
        return find_receipt(session, deletion_id, None, bench.signer).encode()


def _milliseconds(action: Any) -> float:
    started = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - started)


@contextmanager
def _counted(database: Database) -> Iterator[list[str]]:
    """Collects each read of a tile."""
    reads: list[str] = []

    def note(*told: Any) -> None:
        if "log_tiles" in told[2]:
            reads.append(told[2])

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield reads
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
