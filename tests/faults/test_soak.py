"""Two thousand deletions over five models, with three workers of which one is killed every few seconds.

Also the sweep and Redis; the supervisor of `lethe up` brings all of them back. SOAK_SECONDS says for how long.
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
from tests.faults.aftermath import clear_away
from tests.faults.crowd import Asking, shared_populations
from tests.faults.invariants import World, check, check_log
from tests.faults.lethe_up import count_batches, open_client, register_all, running_batch, wait_until_done
from tests.waiting import wait_until

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
SEED = 2
MODELS, WORKERS, PEOPLE, ASKED = 5, 3, 2_400, 2_000
DRAIN_SECONDS = 300.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 2 * DRAIN_SECONDS)]


def test_two_thousand_deletions_survive_random_kills(tmp_path: Path) -> None:
    env = {
        **embedded_environment(),
        "LETHE_LEASE_SECONDS": "3",
        "LETHE_MAX_ATTEMPTS": "1000",  # a deletion that was on many killed workers must not be given up
        "OMP_NUM_THREADS": "1",
    }
    with starting(tmp_path, env, workers=WORKERS) as up:
        settings = load_settings(up.data_dir)
        database = Database(settings.database)
        models = register_all(settings, database, shared_populations(MODELS, PEOPLE, SEED))
        people = random.Random(SEED).sample(range(PEOPLE), ASKED)
        with open_client(up.url, database) as client, Asking(client, people, SECONDS, SEED) as asking:
            kills = _kill_for(SECONDS, up, database)
            asked = asking.finish()
            drained = wait_until_done(database, DRAIN_SECONDS)
    told = f"{dict(kills)} in {SECONDS:.0f} s, drained in {drained:.0f} s, seed {SEED}"
    published, abandoned = (count_batches(database, one) for one in (BatchStatus.PUBLISHED, BatchStatus.ABANDONED))
    print(f"{told}: {published} batches published, {abandoned} taken over")  # noqa: T201
    assert len(asked) == ASKED
    assert kills.total() >= SECONDS / 6, "something was killed every few seconds"
    assert abandoned > 0, "some worker was killed in the middle of a batch"
    clear_away(settings, database, models)
    check(World(settings, database, models, asked), told)
    check_log(settings, database)
    database.close()


def _kill_for(seconds: float, up: Running, database: Database) -> Counter[str]:
    """What was killed how often."""
    chance, killed = random.Random(SEED), Counter[str]()
    workers = [f"worker-{number}" for number in range(1, WORKERS + 1)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(1.0, 4.0))
        victim = chance.choice(["a batch", "a batch", *workers, "a child", "sweep", "redis"])
        with suppress(KeyError, psutil.NoSuchProcess, TimeoutError):  # it is dead already, or nobody works
            _kill(victim, up, database, chance)
            killed[victim] += 1
    return killed


def _kill(victim: str, up: Running, database: Database, chance: random.Random) -> None:
    if victim == "a batch":  # whoever is at work
        batch = wait_until(lambda: running_batch(database), "a batch runs", timeout=3.0)
        pid = int(batch.worker.rpartition(":")[2])
        time.sleep(chance.uniform(0.0, 0.05))
        psutil.Process(pid).kill()
    elif victim == "a child":  # of a worker: Celery itself replaces it
        for child in psutil.Process(up.processes()[f"worker-{chance.randint(1, WORKERS)}"]).children():
            child.kill()
    else:
        psutil.Process(up.processes()[victim]).send_signal(signal.SIGKILL)
