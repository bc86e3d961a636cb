"""PostgreSQL and Redis are killed and flushed while real workers run and deletions arrive."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.settings import Settings, new_key
from service.store.database import Database
from tests.end_to_end.conftest import embedded_environment, starting
from tests.faults.deletion_load import DeletionLoad, shared_populations
from tests.faults.elapsed_time import sweep_files
from tests.faults.fork_client import environment
from tests.faults.invariants import Scenario, check, check_log
from tests.faults.killable_servers import KillablePostgreSQL, KillableRedis, killable_postgresql, killable_redis
from tests.faults.lethe_up import open_client, register_all, wait_until_done

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SEED = 3
MODELS, PEOPLE, DELETIONS = 3, 400, 300
SECONDS = 25.0
"""Duration of the deletion requests and of the kills."""


def test_killing_the_database_and_the_broker_loses_nothing(tmp_path: Path) -> None:
    with killable_postgresql(tmp_path) as postgresql, killable_redis(tmp_path) as redis:
        settings = _settings(postgresql, redis, tmp_path)
        env = {**embedded_environment(), **environment(settings)}
        database = Database(settings.database)
        with starting(tmp_path, env, workers=2) as up:
            models = register_all(settings, database, shared_populations(MODELS, PEOPLE, SEED))
            people = random.Random(SEED).sample(range(PEOPLE), DELETIONS)
            with open_client(up.url, database) as client, DeletionLoad(client, people, SECONDS, SEED) as load:
                faults = _inject_faults(postgresql, redis)
                deletions = load.finish()
                wait_until_done(database, timeout=120)
        sweep_files(settings, database)
        check(Scenario(settings, database, models, deletions), f"{', '.join(faults)}; seed {SEED}")
        check_log(settings, database)
        database.close()


def _inject_faults(postgresql: KillablePostgreSQL, redis: KillableRedis) -> list[str]:
    """Inject faults at random times from the seed; return their names in order."""
    rng = random.Random(SEED)
    faults: dict[str, Callable[[], None]] = {
        "PostgreSQL killed": lambda: _restart(rng, postgresql),
        "Redis killed": lambda: _restart(rng, redis),
        "Redis flushed": redis.flush,
    }
    names = [*faults, *faults, *faults]
    rng.shuffle(names)
    for name in names:
        time.sleep(rng.uniform(0.5, 2 * SECONDS / len(names) - 1.0))
        faults[name]()
    return names


def _restart(rng: random.Random, server: KillablePostgreSQL | KillableRedis) -> None:
    server.kill()
    time.sleep(rng.uniform(0.1, 1.0))
    server.start()


def _settings(postgresql: KillablePostgreSQL, redis: KillableRedis, folder: Path) -> Settings:
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL=postgresql.url,
        REDIS_URL=redis.url,
        data_dir=folder / "data",
        identity_key=new_key(),
        signing_key=new_key(),
        log_key=new_key(),
        batch_window_seconds=0.2,
        lease_seconds=3.0,
        sweep_seconds=0.5,
        max_attempts=50,
    )
