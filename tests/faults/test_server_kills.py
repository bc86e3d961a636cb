"""PostgreSQL and Redis are killed and flushed while real workers work and deletions come in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.settings import Settings, new_key
from service.store.database import Database
from tests.end_to_end.conftest import embedded_environment, starting
from tests.faults.aftermath import clear_away
from tests.faults.crowd import Asking, shared_populations
from tests.faults.forging import environment
from tests.faults.invariants import World, check, check_log
from tests.faults.lethe_up import open_client, register_all, wait_until_done
from tests.faults.mortal_servers import MortalPostgreSQL, MortalRedis, mortal_postgresql, mortal_redis

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SEED = 3
MODELS, PEOPLE, ASKED = 3, 400, 300
SECONDS = 25.0
"""In which the deletions are posted and the servers are killed."""


def test_killing_the_database_and_the_broker_loses_nothing(tmp_path: Path) -> None:
    with mortal_postgresql(tmp_path) as postgresql, mortal_redis(tmp_path) as redis:
        settings = _settings(postgresql, redis, tmp_path)
        env = {**embedded_environment(), **environment(settings)}
        database = Database(settings.database)
        with starting(tmp_path, env, workers=2) as up:
            models = register_all(settings, database, shared_populations(MODELS, PEOPLE, SEED))
            people = random.Random(SEED).sample(range(PEOPLE), ASKED)
            with open_client(up.url, database) as client, Asking(client, people, SECONDS, SEED) as asking:
                faults = _kill_now_and_then(postgresql, redis)
                asked = asking.finish()
                wait_until_done(database, timeout=120)
        clear_away(settings, database, models)
        check(World(settings, database, models, asked), f"{', '.join(faults)}; seed {SEED}")
        check_log(settings, database)
        database.close()


def _kill_now_and_then(postgresql: MortalPostgreSQL, redis: MortalRedis) -> list[str]:
    """At seeded moments; what was done, in order."""
    chance = random.Random(SEED)
    faults: dict[str, Callable[[], None]] = {
        "PostgreSQL killed": lambda: _away(chance, postgresql),
        "Redis killed": lambda: _away(chance, redis),
        "Redis flushed": redis.flush,
    }
    names = [*faults, *faults, *faults]
    chance.shuffle(names)
    for name in names:
        time.sleep(chance.uniform(0.5, 2 * SECONDS / len(names) - 1.0))
        faults[name]()
    return names


def _away(chance: random.Random, server: MortalPostgreSQL | MortalRedis) -> None:
    server.kill()
    time.sleep(chance.uniform(0.1, 1.0))
    server.start()


def _settings(postgresql: MortalPostgreSQL, redis: MortalRedis, folder: Path) -> Settings:
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL=postgresql.url,
        REDIS_URL=redis.url,
        data_dir=folder / "data",
        identity_key=new_key(),
        signing_key=new_key(),
        batch_window_seconds=0.2,
        lease_seconds=3.0,
        sweep_seconds=0.5,
        max_attempts=50,
    )
