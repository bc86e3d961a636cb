"""Resources of tests that kill workers at chosen boundaries, and the steps that they share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.settings import Settings
from service.store.database import Database
from tests import samples
from tests.faults.elapsed_time import expire_lease, sweep_files
from tests.faults.fork_client import ForkClient, WorkerExit, run_fork_server
from tests.faults.invariants import Scenario, check
from tests.faults.population import draw_population, register_population
from worker.context import WorkerContext
from worker.forget import forget_pending

PEOPLE, ROWS_EACH = 12, 2
MAX_BATCHES = 6


@dataclass(frozen=True)
class Bench:
    """Resources shared by the trials on one database and one artifact store."""

    settings: Settings
    database: Database
    context: WorkerContext
    workers: ForkClient
    bucket: Path | None


@contextmanager
def open_bench(settings: Settings, database: Database, bucket: Path | None, log_file: Path) -> Iterator[Bench]:
    # A heartbeat would add a boundary at a random time: make it rare.
    settings = settings.model_copy(update={"lease_seconds": 30.0, "max_attempts": 1000})
    context = WorkerContext.open(settings)
    with run_fork_server(settings, log_file) as workers:
        yield Bench(settings, database, context, workers, bucket)
    context.doorbell.close()
    context.database.close()


class Trial:
    """A model of its own, its deletions, and the kills of its workers.

    Trials share no people: a person in two models would be forgotten in both.
    """

    def __init__(self, bench: Bench, number: int) -> None:
        self._bench = bench
        self.people = list(range(number * PEOPLE, (number + 1) * PEOPLE))
        self.population = draw_population(self.people, ROWS_EACH, seed=number)
        self.model_id = register_population(bench.settings, bench.database, self.population)
        self.deletions: dict[uuid.UUID, Sequence[int]] = {}

    def request(self, *people: int) -> uuid.UUID:
        deletion_id = samples.request_deletion(self._bench.settings, self._bench.database, *people).deletion.id
        self.deletions[deletion_id] = people
        return deletion_id

    def run(self) -> Sequence[str]:
        """Run a worker to its end; return the boundaries that it reached."""
        worker_exit = self._bench.workers.run_worker(self.model_id)
        assert worker_exit.exit_code == 0
        return worker_exit.boundaries

    def kill(self, boundary: int) -> WorkerExit:
        """Run a worker until the boundary, where it is killed, and let its lease expire."""
        worker_exit = self._bench.workers.run_worker(self.model_id, die_at=boundary)
        expire_lease(self._bench.database, self.model_id)
        return worker_exit

    def finish(self) -> None:
        """Run workers until nothing is pending, then the next sweep."""
        for _ in range(MAX_BATCHES):
            if not forget_pending(self._bench.context, self.model_id):
                sweep_files(self._bench.settings, self._bench.database)
                return
        raise AssertionError(f"deletions are still pending after {MAX_BATCHES} batches")

    def check(self, circumstances: str) -> None:
        """Check all invariants, the byte scan included."""
        models = {self.model_id: self.population}
        bench = self._bench
        check(Scenario(bench.settings, bench.database, models, self.deletions, bench.bucket), circumstances)
