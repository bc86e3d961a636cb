"""Shutdown of real `lethe worker` processes, with a batch that lasts as long as the test needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import select

from service.settings import Settings
from service.store.batches.doorbell import Doorbell
from service.store.batches.release import WORKER_STOPPED
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.tables import Batch
from tests import samples
from tests.faults.fork_client import environment
from tests.waiting import wait_until
from worker.failures import TOO_LONG

LEASE_SECONDS, SHUTDOWN_SECONDS = 40.0, 5.0
WORKER = """
    import sys, time
    from pathlib import Path
    from worker import forget

    load, gate = forget.load_claimed, Path(sys.argv[1])

    def wait_and_load(*arguments):
        gate.with_suffix(".reached").touch()
        while gate.exists():
            time.sleep(0.02)
        return load(*arguments)

    forget.load_claimed = wait_and_load

    from lethe.cli.main import app
    app(["worker"])
"""


@dataclass(frozen=True)
class Gate:
    """While the file exists, a batch that has started waits."""

    path: Path

    def close(self) -> None:
        self.path.with_suffix(".reached").unlink(missing_ok=True)
        self.path.touch()

    def open(self) -> None:
        self.path.unlink()

    def reached(self) -> bool:
        return self.path.with_suffix(".reached").exists()


@dataclass(frozen=True)
class Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def has_logged(self, words: str) -> bool:
        return words in self.log.read_text()

    def children(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children()}


@contextmanager
def running(settings: Settings, gate: Gate, log: Path) -> Iterator[Worker]:
    env = {
        **environment(settings),
        "LETHE_LEASE_SECONDS": str(LEASE_SECONDS),
        "LETHE_SHUTDOWN_SECONDS": str(SHUTDOWN_SECONDS),
        "LETHE_WORKER_MEMORY_BYTES": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
    }
    argv = [sys.executable, "-c", textwrap.dedent(WORKER), str(gate.path)]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield Worker(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True)
class Job:
    """Batches of one model, each of which waits at the gate."""

    settings: Settings
    database: Database
    model_id: uuid.UUID
    gate: Gate

    def start_batch(self, person: int) -> uuid.UUID:
        """Request a deletion and wait until a worker has started its batch; return its id."""
        self.gate.close()
        deletion_id = samples.request_deletion(self.settings, self.database, person).deletion.id
        doorbell = Doorbell(self.settings.broker, self.database)
        assert doorbell.ring(self.model_id)
        doorbell.close()
        wait_until(self.gate.reached, "a worker has started the batch", 30)
        return deletion_id

    def batches(self) -> list[Batch]:
        with self.database.reading() as session:
            return list(session.scalars(select(Batch).order_by(Batch.started_at)))

    def state(self, deletion_id: uuid.UUID) -> tuple[str, int]:
        """Return the status of a deletion and the number of its attempts."""
        with self.database.reading() as session:
            view = find_view(session, deletion_id, caller=None)
        return view.deletion.status, view.targets[0].attempts


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_long_batch_is_released_an_overlong_one_stopped_and_a_short_one_finished(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    """One test, because starting two workers takes longer than all three checks."""
    job = Job(settings, database, samples.register_sample(settings, database), Gate(tmp_path / "gate"))
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete("lethe.cpu")
    with (
        running(settings, job.gate, tmp_path / "first.log") as first,
        running(settings, job.gate, tmp_path / "second.log") as second,
    ):
        for worker in (first, second):
            wait_until(lambda worker=worker: worker.has_logged(" ready."), "a worker is ready", 90)
        remaining = _check_that_a_long_batch_is_released(job, first, second)
        _check_that_an_overlong_batch_is_stopped(job, remaining)
        _check_that_a_short_batch_is_finished(job, remaining)
    assert [batch.status for batch in job.batches()] == ["abandoned", "published", "failed", "published"]


def _check_that_a_long_batch_is_released(job: Job, first: Worker, second: Worker) -> Worker:
    """Stop the worker of a batch; return the other, which takes over."""
    deletion_id = job.start_batch(1)
    (batch,) = job.batches()
    holder, other = (first, second) if batch.worker.endswith(f":{first.process.pid}") else (second, first)
    assert batch.worker.endswith(f":{holder.process.pid}")
    holder_children, other_children = holder.children(), other.children()
    stopped_at = time.monotonic()
    holder.process.terminate()
    wait_until(lambda: len(job.batches()) == 2, "another worker takes over", LEASE_SECONDS)
    assert SHUTDOWN_SECONDS < time.monotonic() - stopped_at < LEASE_SECONDS
    released, current = job.batches()
    assert (released.status, released.failure) == ("abandoned", WORKER_STOPPED)
    assert (current.status, current.worker) == ("running", f"{batch.worker.rpartition(':')[0]}:{other.process.pid}")
    assert job.state(deletion_id) == ("running", 1)  # the released attempt does not count
    assert holder.process.wait(timeout=20) == 0
    assert not [pid for pid in holder_children if psutil.pid_exists(pid)]
    job.gate.open()
    wait_until(lambda: job.state(deletion_id) == ("completed", 1), "the deletion is done", 30)
    wait_until(lambda: other.children() and not other.children() & other_children, "a large child is replaced", 30)
    return other


def _check_that_an_overlong_batch_is_stopped(job: Job, worker: Worker) -> None:
    deletion_id = job.start_batch(2)
    (child,) = worker.children()
    os.kill(child, signal.SIGUSR1)  # Celery's signal at the soft time limit
    wait_until(lambda: job.state(deletion_id) == ("failed", 1), "the batch is stopped", 30)
    assert job.batches()[-1].failure == TOO_LONG


def _check_that_a_short_batch_is_finished(job: Job, worker: Worker) -> None:
    deletion_id = job.start_batch(3)
    worker.process.terminate()
    wait_until(lambda: worker.has_logged("Warm shutdown"), "the worker received the signal", 30)
    job.gate.open()
    assert worker.process.wait(timeout=20) == 0
    assert job.state(deletion_id) == ("completed", 1)
