"""Two thousand deletions over five models, while a worker, the sweep or Redis is killed every few seconds.

The supervisor of `lethe up` restarts them. SOAK_SECONDS sets the duration.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from service.settings import load_settings
from service.store.database import Database
from service.store.states import BatchStatus
from tests.end_to_end.conftest import Running, embedded_environment, starting
from tests.faults.deletion_load import DeletionLoad, shared_populations
from tests.faults.elapsed_time import sweep_files
from tests.faults.invariants import Scenario, check, check_log
from tests.faults.lethe_up import count_batches, open_client, register_all, running_batch, wait_until_done
from tests.waiting import wait_until

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
SEED = 2
MODELS, WORKERS, PEOPLE, DELETIONS = 5, 3, 2_400, 2_000
DRAIN_SECONDS = 300.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 2 * DRAIN_SECONDS)]


def test_two_thousand_deletions_survive_random_kills(tmp_path: Path) -> None:
    env = {
        **embedded_environment(),
        "LETHE_LEASE_SECONDS": "3",
        "LETHE_MAX_ATTEMPTS": "1000",  # kills must not mark a deletion as failed
        "OMP_NUM_THREADS": "1",
    }
    with starting(tmp_path, env, workers=WORKERS) as up:
        settings = load_settings(up.data_dir)
        database = Database(settings.database)
        models = register_all(settings, database, shared_populations(MODELS, PEOPLE, SEED))
        people = random.Random(SEED).sample(range(PEOPLE), DELETIONS)
        with open_client(up.url, database) as client, DeletionLoad(client, people, SECONDS, SEED) as load:
            kills = _kill_for(SECONDS, up, database)
            deletions = load.finish()
            drained = wait_until_done(database, DRAIN_SECONDS)
    circumstances = f"{dict(kills)} in {SECONDS:.0f} s, drained in {drained:.0f} s, seed {SEED}"
    published, abandoned = (
        count_batches(database, status) for status in (BatchStatus.PUBLISHED, BatchStatus.ABANDONED)
    )
    print(f"{circumstances}: {published} batches published, {abandoned} taken over")  # noqa: T201
    assert len(deletions) == DELETIONS
    assert kills.total() >= SECONDS / 6, "something was killed every few seconds"
    assert abandoned > 0, "some worker was killed in the middle of a batch"
    sweep_files(settings, database)
    check(Scenario(settings, database, models, deletions), circumstances)
    check_log(settings, database)
    database.close()


def _kill_for(seconds: float, up: Running, database: Database) -> Counter[str]:
    """Kill a random victim every few seconds; return how often each was killed."""
    rng, killed = random.Random(SEED), Counter[str]()
    workers = [f"worker-{number}" for number in range(1, WORKERS + 1)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(1.0, 4.0))
        victim = rng.choice(["a batch", "a batch", *workers, "a child", "sweep", "redis"])
        with suppress(KeyError, psutil.NoSuchProcess, TimeoutError):  # it is already dead, or no batch runs
            _kill(victim, up, database, rng)
            killed[victim] += 1
    return killed


def _kill(victim: str, up: Running, database: Database, rng: random.Random) -> None:
    if victim == "a batch":  # the worker of a running batch
        batch = wait_until(lambda: running_batch(database), "a batch runs", timeout=3.0)
        pid = int(batch.worker.rpartition(":")[2])
        time.sleep(rng.uniform(0.0, 0.05))
        psutil.Process(pid).kill()
    elif victim == "a child":  # of a worker: Celery replaces it
        for child in psutil.Process(up.processes()[f"worker-{rng.randint(1, WORKERS)}"]).children():
            child.kill()
    else:
        psutil.Process(up.processes()[victim]).send_signal(signal.SIGKILL)
