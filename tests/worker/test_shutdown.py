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
from service.store.deletions.views import DeletionView, find_view
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

    load, gate = forget.load_model, Path(sys.argv[1])

    def wait_and_load(*arguments):
        gate.with_suffix(".reached").touch()
        while gate.exists():
            time.sleep(0.02)
        return load(*arguments)

    forget.load_model = wait_and_load

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


def batches(database: Database) -> list[Batch]:
    with database.reading() as session:
        return list(session.scalars(select(Batch).order_by(Batch.started_at)))


def state(database: Database, view: DeletionView) -> tuple[str, int]:
    with database.reading() as session:
        current = find_view(session, view.deletion.id, caller=None)
    return current.deletion.status, current.targets[0].attempts


def request_and_ring(settings: Settings, database: Database, model_id: uuid.UUID, person: int) -> DeletionView:
    view, doorbell = samples.request_deletion(settings, database, person), Doorbell(settings.broker, database)
    assert doorbell.ring(model_id)
    doorbell.close()
    return view


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_long_batch_is_released_an_overlong_one_stopped_and_a_short_one_finished(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    gate, model_id = Gate(tmp_path / "gate"), samples.register_sample(settings, database)
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete("lethe.cpu")
    gate.close()
    with (
        running(settings, gate, tmp_path / "first.log") as first,
        running(settings, gate, tmp_path / "second.log") as second,
    ):
        for worker in (first, second):
            wait_until(lambda worker=worker: worker.has_logged(" ready."), "a worker is ready", 90)
        view = request_and_ring(settings, database, model_id, 1)
        wait_until(gate.reached, "a worker has started the batch", 30)
        (batch,) = batches(database)
        holder, other = (first, second) if batch.worker.endswith(f":{first.process.pid}") else (second, first)
        assert batch.worker.endswith(f":{holder.process.pid}")
        holder_children, other_children = holder.children(), other.children()
        stopped_at = time.monotonic()
        holder.process.terminate()
        wait_until(lambda: len(batches(database)) == 2, "another worker takes over", LEASE_SECONDS)
        assert SHUTDOWN_SECONDS < time.monotonic() - stopped_at < LEASE_SECONDS
        released, current = batches(database)
        assert (released.status, released.failure) == ("abandoned", WORKER_STOPPED)
        assert (current.status, current.worker) == (
            "running",
            batch.worker.rpartition(":")[0] + f":{other.process.pid}",
        )
        assert state(database, view) == ("running", 1)  # the released attempt does not count
        assert holder.process.wait(timeout=20) == 0
        assert not [pid for pid in holder_children if psutil.pid_exists(pid)]
        gate.open()
        wait_until(lambda: state(database, view) == ("completed", 1), "the deletion is done", 30)
        wait_until(lambda: other.children() and not other.children() & other_children, "a large child is replaced", 30)

        gate.close()
        view = request_and_ring(settings, database, model_id, 2)
        wait_until(gate.reached, "the worker has started the batch", 30)
        (child,) = other.children()
        os.kill(child, signal.SIGUSR1)  # Celery's signal at the soft time limit
        wait_until(lambda: state(database, view) == ("failed", 1), "the batch is stopped", 30)
        assert batches(database)[-1].failure == TOO_LONG

        gate.close()
        view = request_and_ring(settings, database, model_id, 3)
        wait_until(gate.reached, "the worker has started the batch", 30)
        other.process.terminate()
        wait_until(lambda: other.has_logged("Warm shutdown"), "the worker received the signal", 30)
        gate.open()
        assert other.process.wait(timeout=20) == 0
        assert state(database, view) == ("completed", 1)
        assert [batch.status for batch in batches(database)] == ["abandoned", "published", "failed", "published"]
