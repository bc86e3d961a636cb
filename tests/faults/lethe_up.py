"""Models, clients and waiting for fault tests against `lethe up`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import func, select

from lethe import Client
from service.settings import Settings
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.states import BatchStatus, DeletionStatus, Role
from service.store.tables import Batch, DeletionTarget
from tests.faults.population import Population, register_population
from tests.waiting import wait_until

RETRY_SECONDS = 120.0


def register_all(
    settings: Settings, database: Database, populations: Sequence[Population]
) -> Mapping[uuid.UUID, Population]:
    return {register_population(settings, database, population): population for population in populations}


def open_client(url: str, database: Database) -> Client:
    """Return a client that requests deletions and retries while servers are unavailable."""
    with database.writing() as session:
        token = issue_token(session, "acme", Role.COMPLIANCE, actor="test")
    return Client(url, token, timeout=60, patience=RETRY_SECONDS)


def wait_until_done(database: Database, timeout: float) -> float:
    """Wait until no deletion is pending and no batch runs; return the seconds."""
    started = time.monotonic()
    waiting = select(func.count()).where(DeletionTarget.status.in_([DeletionStatus.PENDING, DeletionStatus.RUNNING]))
    running = select(func.count()).where(Batch.status == BatchStatus.RUNNING)

    def is_done() -> bool:
        time.sleep(0.2)  # polling faster would slow the workers down
        with database.reading() as session:
            return not session.scalar(waiting) and not session.scalar(running)

    wait_until(is_done, "every deletion has ended", timeout)
    return time.monotonic() - started


def running_batch(database: Database) -> Batch | None:
    with database.reading() as session:
        return session.scalar(select(Batch).where(Batch.status == BatchStatus.RUNNING).limit(1))


def count_batches(database: Database, status: BatchStatus) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).where(Batch.status == status)) or 0
