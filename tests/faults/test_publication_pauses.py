"""Pauses between the statements of the largest publication: a longer one than the limit would end its session."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, func, select

from service.settings import Settings
from service.store.database import Database
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest
from service.store.engines import IDLE_IN_TRANSACTION_SECONDS
from service.store.signing.keys import open_signer
from service.store.tables import Certificate
from tests import samples
from tests.faults.population import draw_population, register_population
from worker import forget
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

DELETIONS = 10_000
CHUNK = 1_000
SAFETY = 3.0
"""How much slower a machine may be than this one."""


class Pauses:
    """Longest pause between two statements of a connection pool, while it is watched."""

    def __init__(self, database: Database) -> None:
        self.longest = 0.0
        self._idle_since: float | None = None
        event.listen(database.engine, "before_cursor_execute", self._begin)
        event.listen(database.engine, "after_cursor_execute", self._end)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._idle_since = time.monotonic()
        yield
        self._begin()

    def _begin(self, *_: Any) -> None:
        if self._idle_since is not None:
            self.longest = max(self.longest, time.monotonic() - self._idle_since)

    def _end(self, *_: Any) -> None:
        if self._idle_since is not None:
            self._idle_since = time.monotonic()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_no_pause_of_the_largest_publication_comes_near_the_limit(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = draw_population(range(2 * DELETIONS), 1, seed=4)
    model_id = register_population(settings, database, population)
    request_all(settings, database, model_id)
    context = WorkerContext.open(settings)
    pauses, publish = Pauses(context.database), forget.publish
    seconds: list[float] = []

    def watched(*args: Any, **options: Any) -> Any:
        started = time.monotonic()
        with pauses.watching():
            result = publish(*args, **options)
        seconds.append(time.monotonic() - started)
        return result

    monkeypatch.setattr(forget, "publish", watched)
    assert forget_pending(context, model_id)
    context.doorbell.close()
    context.database.close()
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Certificate)) == DELETIONS
    print(f"\npublication of {DELETIONS}: {seconds[0]:.1f} s, longest pause {pauses.longest:.1f} s")  # noqa: T201
    assert pauses.longest * SAFETY < IDLE_IN_TRANSACTION_SECONDS


def request_all(settings: Settings, database: Database, model_id: uuid.UUID) -> None:
    signer = open_signer(settings, database)
    for first in range(0, DELETIONS, CHUNK):
        requests = [
            DeletionRequest(
                caller="acme",
                regulation="gdpr",
                lookups=[samples.lookup(settings, person)],
                model_ids=[model_id],
                request_id="request-1",
                window_seconds=0.0,
            )
            for person in range(first, first + CHUNK)
        ]
        with database.writing() as session:
            store_deletions(session, requests, signer)
