"""201 means durable: ten thousand deletions are posted while PostgreSQL is killed repeatedly.

A request without 201 is repeated with the same idempotency key. In the end every deletion is stored exactly once.
While the database is unavailable, every response is a complete 503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Iterator
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
from tests.faults.api_process import serve_api
from tests.faults.killable_servers import KillablePostgreSQL, killable_postgresql
from tests.faults.plain_http import Connection, Response
from tests.faults.population import draw_population, register_population

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

POSTS, CONNECTIONS, PEOPLE = 10_000, 24, 500
KILLS = 8
SEED = 4


@dataclass
class Outcome:
    """Responses of the API: the deletion id of each key, and the number of refusals."""

    ids: dict[str, str] = field(default_factory=dict)
    refusals: int = 0


def test_no_acknowledged_post_is_lost_when_the_database_is_killed(broker: str, tmp_path: Path) -> None:
    with killable_postgresql(tmp_path) as postgresql:
        settings = _settings(postgresql.url, broker, tmp_path)
        database = Database(settings.database)
        token = _prepare(settings, database)
        with serve_api(settings, tmp_path / "api.log") as port:
            outcome = asyncio.run(_post_all(port, token, postgresql))
        _check(outcome, database)
        database.close()


def _check(outcome: Outcome, database: Database) -> None:
    assert len(outcome.ids) == len(set(outcome.ids.values())) == POSTS, f"seed {SEED}"
    assert outcome.refusals > KILLS, "the database was unavailable"
    with database.reading() as session:
        stored = {str(deletion_id) for deletion_id in session.scalars(select(Deletion.id))}
        keys = session.scalar(select(func.count()).select_from(IdempotencyKey))
    missing, surplus = set(outcome.ids.values()) - stored, stored - set(outcome.ids.values())
    assert not missing, f"{len(missing)} deletions were acknowledged and lost, seed {SEED}"
    assert not surplus, f"{len(surplus)} deletions were stored twice, seed {SEED}"
    assert keys == POSTS


async def _post_all(port: int, token: str, postgresql: KillablePostgreSQL) -> Outcome:
    outcome, numbers = Outcome(), iter(range(POSTS))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(_post(port, token, numbers, outcome))
        tasks.create_task(_kill_repeatedly(postgresql, outcome))
    return outcome


async def _kill_repeatedly(postgresql: KillablePostgreSQL, outcome: Outcome) -> None:
    """Kill after random numbers of acknowledged requests, independent of the speed of the machine."""
    rng = random.Random(SEED)
    for acknowledged in sorted(rng.sample(range(POSTS * 9 // 10), KILLS)):
        while len(outcome.ids) < acknowledged:
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.uniform(0.0, 0.02))
        await asyncio.to_thread(postgresql.kill)
        await asyncio.sleep(rng.uniform(0.2, 0.8))
        await asyncio.to_thread(postgresql.start)


async def _post(port: int, token: str, numbers: Iterator[int], outcome: Outcome) -> None:
    connection = await Connection.open(port)
    for number in numbers:
        key = str(uuid.UUID(int=number, version=4))
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
        body = json.dumps({"regulation": "gdpr", "subjects": [samples.person(number % PEOPLE)]}).encode()
        while (response := await connection.post("/api/v1/deletions", headers, body)).status != 201:
            _count_refusal(response, outcome)
            await asyncio.sleep(0.1)
        outcome.ids[key] = json.loads(response.body)["id"]
    await connection.close()


def _count_refusal(response: Response, outcome: Outcome) -> None:
    outcome.refusals += 1
    is_complete = (
        response.status == 503
        and response.headers["content-type"] == "application/problem+json"
        and response.headers.get("retry-after", "").isdigit()
        and json.loads(response.body)["type"] == "urn:lethe:problem:database-away"
    )
    assert is_complete, f"after {len(outcome.ids)} deletions, seed {SEED}: {response}"


def _settings(database: str, broker: str, folder: Path) -> Settings:
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL=database,
        REDIS_URL=broker,
        data_dir=folder / "data",
        identity_key=new_key(),
        signing_key=new_key(),
        log_key=new_key(),
    )


def _prepare(settings: Settings, database: Database) -> str:
    """Register a model with all the people, and return a token. No worker runs: the deletions stay pending."""
    migrate.upgrade(database)
    register_population(settings, database, draw_population(range(PEOPLE), 1, seed=SEED))
    with database.writing() as session:
        return issue_token(session, "acme", Role.COMPLIANCE, actor="test")
