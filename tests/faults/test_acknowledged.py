"""201 means durable: ten thousand deletions are posted while PostgreSQL is killed again and again.

Whoever got no 201 sends the same request again under the same key. Afterwards every deletion is there, and none twice.
While the database is away every answer is whole: a 503 that says when to come again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.settings import Settings, new_key
from service.store import migrate
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Deletion, IdempotencyKey
from tests import samples
from tests.end_to_end.conftest import free_port, is_ready
from tests.faults.forging import environment
from tests.faults.mortal_servers import MortalPostgreSQL, mortal_postgresql
from tests.faults.plain_http import Answer, Connection
from tests.faults.population import draw, register_population
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

POSTS, CONNECTIONS, PEOPLE = 10_000, 24, 500
KILLS = 8
SEED = 4


@dataclass
class Told:
    """What the API answered: the id under each key, and how often it refused."""

    ids: dict[str, str] = field(default_factory=dict)
    refusals: int = 0


def test_no_acknowledged_post_is_lost_when_the_database_is_killed(broker: str, tmp_path: Path) -> None:
    with mortal_postgresql(tmp_path) as postgresql:
        settings = _settings(postgresql.url, broker, tmp_path)
        database = Database(settings.database)
        token = _prepare(settings, database)
        with _api(settings, tmp_path / "api.log") as port:
            told = asyncio.run(_post_all(port, token, postgresql))
        _check(told, database)
        database.close()


def _check(told: Told, database: Database) -> None:
    assert len(told.ids) == len(set(told.ids.values())) == POSTS, f"seed {SEED}"
    assert told.refusals > KILLS, "the database was really away"
    with database.reading() as session:
        stored = {str(one) for one in session.scalars(select(Deletion.id))}
        keys = session.scalar(select(func.count()).select_from(IdempotencyKey))
    missing, surplus = set(told.ids.values()) - stored, stored - set(told.ids.values())
    assert not missing, f"{len(missing)} deletions were acknowledged and lost, seed {SEED}"
    assert not surplus, f"{len(surplus)} deletions were stored twice, seed {SEED}"
    assert keys == POSTS


async def _post_all(port: int, token: str, postgresql: MortalPostgreSQL) -> Told:
    told, numbers = Told(), iter(range(POSTS))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(_post(port, token, numbers, told))
        tasks.create_task(_kill_now_and_then(postgresql, told))
    return told


async def _kill_now_and_then(postgresql: MortalPostgreSQL, told: Told) -> None:
    """At seeded numbers of acknowledged requests, so that it hits however fast the machine is."""
    chance = random.Random(SEED)
    for acknowledged in sorted(chance.sample(range(POSTS * 9 // 10), KILLS)):
        while len(told.ids) < acknowledged:
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        await asyncio.to_thread(postgresql.kill)
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        await asyncio.to_thread(postgresql.start)


async def _post(port: int, token: str, numbers: Iterator[int], told: Told) -> None:
    connection = await Connection.open(port)
    for number in numbers:
        key = str(uuid.UUID(int=number))
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
        body = json.dumps({"regulation": "gdpr", "subjects": [samples.person(number % PEOPLE)]}).encode()
        while (answer := await connection.post("/api/v1/deletions", headers, body)).status != 201:
            _note_refusal(answer, told)
            await asyncio.sleep(0.1)
        told.ids[key] = json.loads(answer.body)["id"]
    await connection.close()


def _note_refusal(answer: Answer, told: Told) -> None:
    told.refusals += 1
    whole = (
        answer.status == 503
        and answer.headers["content-type"] == "application/problem+json"
        and answer.headers.get("retry-after", "").isdigit()
        and json.loads(answer.body)["type"] == "urn:lethe:problem:database-away"
    )
    assert whole, f"after {len(told.ids)} deletions, seed {SEED}: {answer}"


def _settings(database: str, broker: str, folder: Path) -> Settings:
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL=database,
        REDIS_URL=broker,
        data_dir=folder / "data",
        identity_key=new_key(),
        signing_key=new_key(),
    )


def _prepare(settings: Settings, database: Database) -> str:
    """A model that holds all who are going to be named, and a token. No worker runs: what is asked stays pending."""
    migrate.upgrade(database)
    register_population(settings, database, draw(range(PEOPLE), 1, seed=SEED))
    with database.writing() as session:
        return issue_token(session, "acme", Role.COMPLIANCE, actor="test")


@contextmanager
def _api(settings: Settings, log_file: Path) -> Iterator[int]:
    port = free_port()
    env = {**os.environ, **environment(settings), "LETHE_RATE_PER_SECOND": "1000000", "LETHE_RATE_BURST": "1000000"}
    command = [sys.executable, "-m", "lethe", "api", "--port", str(port)]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"), "the API is ready", timeout=60)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)
