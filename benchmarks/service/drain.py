"""`lethe bench drain`: cost of a thousand deletions of one model against ten, and speed-up by a second worker.

A measurement covers a whole batch, from the claim to the published version with a signed certificate per deletion. Ten
and a thousand alternate on one model, so that other load on the machine affects both.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.table import Table
from sqlalchemy import func, select

from benchmarks.service.database import scratch_postgresql, scratch_redis, scratch_settings
from benchmarks.service.drain_models import Population, populate, train
from lethe.progress import OnProgress, stages
from service.logs import configure_logging
from service.settings import Settings
from service.store import migrate
from service.store.database import Database
from service.store.states import BatchStatus, DeletionStatus
from service.store.tables import Batch, DeletionTarget, now
from worker.context import WorkerContext
from worker.forget import forget_pending

FEW, MANY = 10, 1_000
SHARED = 100
"""Deletions per batch when workers are compared. The cost of a batch hardly depends on it."""
ROWS_OF_ROUND = 2_000
"""Rows needed per round: all deleted rows, and enough retained rows."""
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class DrainResult:
    seconds_10: float
    seconds_1000: float
    cost_ratio: float
    two_worker_speedup: float


@dataclass(frozen=True)
class Bench:
    context: WorkerContext
    models: Sequence[Population]


def bench_drain(rows: int, rounds: int) -> DrainResult:
    with (
        tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder,
        scratch_postgresql(Path(folder)) as database,
        stages() as bar,
    ):
        settings = scratch_settings(Path(folder), database, batch_window_seconds=0.0)
        log = settings.data_dir / "bench.log"
        with scratch_redis(settings.data_dir), _logging_to(log, settings.log_level), _context(settings) as context:
            bench = _prepare(context, rows, bar("Preparing"))
            few, many = _batch_seconds(bench, rounds, bar("10 and 1,000"))
            one_worker, two_workers = _worker_seconds(bench, rounds, bar("Workers"))
    return DrainResult(few, many, many / few, one_worker / two_workers)


def show(result: DrainResult) -> Table:
    table = Table(title="Seconds of a batch, from claim to publication")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("10 deletions", f"{result.seconds_10:.2f} s")
    table.add_row("1,000 deletions", f"{result.seconds_1000:.2f} s")
    table.add_row("1,000 over 10", f"{result.cost_ratio:.2f}")
    table.add_row("two workers on two models over one", f"{result.two_worker_speedup:.2f}")
    return table


def _prepare(context: WorkerContext, rows: int, report: OnProgress) -> Bench:
    report("training", 0.0)
    trained = train(rows)
    report("registering", 0.3)
    bench = Bench(context, [populate(context, name, trained) for name in ("first", "second")])
    report("done", 1.0)
    return bench


def _batch_seconds(bench: Bench, rounds: int, report: OnProgress) -> tuple[float, float]:
    """Return the median seconds of a small and of a large batch."""
    _drain(bench, FEW)  # warm-up: connections, plans and LAPACK
    seconds: dict[int, list[float]] = {FEW: [], MANY: []}
    for number in range(rounds):
        for count in (FEW, MANY) if number % 2 else (MANY, FEW):
            report(f"{count:,}", number / rounds)
            seconds[count].append(_drain(bench, count))
    report("done", 1.0)
    return statistics.median(seconds[FEW]), statistics.median(seconds[MANY])


def _drain(bench: Bench, count: int) -> float:
    model = bench.models[0]
    model.request_deletions(bench.context, count)
    started = time.perf_counter()
    forget_pending(bench.context, model.model_id)
    seconds = time.perf_counter() - started
    _require_all_completed(bench)
    return seconds


def _worker_seconds(bench: Bench, rounds: int, report: OnProgress) -> tuple[float, float]:
    """Return the median seconds of a batch on each of two models, with one `lethe worker` and with two.

    The order is one, two, two, one: data sets shrink and machines warm up, which then affects both alike.
    """
    settings = bench.context.settings
    with _worker(settings, "one"):
        _wait_for_workers(bench, 1)
        report("one", 0.1)
        one_worker = [_both_seconds(bench) for _ in range(rounds)]
        with _worker(settings, "two"):
            _wait_for_workers(bench, 2)
            report("two", 0.4)
            two_workers = [_both_seconds(bench) for _ in range(2 * rounds)]
        report("one", 0.8)
        one_worker += [_both_seconds(bench) for _ in range(rounds)]
    report("done", 1.0)
    return statistics.median(one_worker), statistics.median(two_workers)


def _both_seconds(bench: Bench, count: int = SHARED) -> float:
    for model in bench.models:
        model.request_deletions(bench.context, count)
    started = time.perf_counter()
    for model in bench.models:
        bench.context.doorbell.ring(model.model_id)
    _wait_until(lambda: not _open_count(bench), "a batch did not finish")
    seconds = time.perf_counter() - started
    _require_all_completed(bench)
    return seconds


def _wait_for_workers(bench: Bench, count: int) -> None:
    """Run small batches until `count` workers have published: all are then started and warm."""
    since = now()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(_workers(bench, since)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} workers did not publish within {TIMEOUT_SECONDS:.0f} s")
        _both_seconds(bench, count=1)


def _workers(bench: Bench, since: datetime) -> Sequence[str]:
    published = select(Batch.worker).distinct().where(Batch.status == BatchStatus.PUBLISHED, Batch.started_at >= since)
    with bench.context.database.reading() as session:
        return session.scalars(published).all()


def _open_count(bench: Bench) -> int:
    return _count(bench, DeletionStatus.PENDING, DeletionStatus.RUNNING)


def _require_all_completed(bench: Bench) -> None:
    if _open_count(bench) or _count(bench, DeletionStatus.FAILED):
        raise RuntimeError("some deletions did not complete: the measurement is invalid")


def _count(bench: Bench, *statuses: DeletionStatus) -> int:
    query = select(func.count()).select_from(DeletionTarget).where(DeletionTarget.status.in_(statuses))
    with bench.context.database.reading() as session:
        return session.scalars(query).one()


def _wait_until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.01)


@contextmanager
def _worker(settings: Settings, name: str) -> Iterator[None]:
    """Run `lethe worker` with one thread."""
    env = {
        **{variable: value for variable, value in os.environ.items() if not variable.startswith("LETHE_")},
        "DATABASE_URL": settings.database,
        "REDIS_URL": settings.broker,
        "LETHE_DATA_DIR": str(settings.data_dir),
        "LETHE_BATCH_WINDOW_SECONDS": "0",
        "LETHE_IDENTITY_KEY": settings.identity_key.get_secret_value() if settings.identity_key else "",
        "LETHE_SIGNING_KEY": settings.signing_key.get_secret_value() if settings.signing_key else "",
        "LETHE_LOG_KEY": settings.log_key.get_secret_value() if settings.log_key else "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "lethe", "worker"]
    with (settings.data_dir / f"worker-{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=settings.data_dir, stdout=log, stderr=log)  # noqa: S603
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _context(settings: Settings) -> Iterator[WorkerContext]:
    database = Database(settings.database)
    migrate.upgrade(database)
    database.close()
    context = WorkerContext.open(settings)
    try:
        yield context
    finally:
        context.doorbell.close()
        context.database.close()


@contextmanager
def _logging_to(path: Path, level: str) -> Iterator[None]:
    """Log like a worker, because logging costs time, but into a file."""
    root = logging.getLogger()
    previous = root.handlers[:], root.level
    with path.open("w") as stream:
        with contextlib.redirect_stdout(stream):
            configure_logging(level)
        try:
            yield
        finally:
            root.handlers, root.level = previous
