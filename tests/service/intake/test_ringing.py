from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis

from service.intake.ringing import Ringer
from service.settings import Settings
from service.store.batches.doorbell import CHECK_TASK, FORGET_TASK, Doorbell
from service.store.database import Database
from service.store.deletions.creation import NewWork
from service.store.tables import now
from tests import samples
from tests.waiting import wait_until

QUEUE = "lethe.cpu"


@pytest.fixture
def ringer(settings: Settings, database: Database) -> Iterator[Ringer]:
    ringer = Ringer(Doorbell(settings.broker, database))
    yield ringer
    ringer.close()


@pytest.fixture
def sent_tasks(settings: Settings) -> Iterator[Callable[[], list[str]]]:
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete(QUEUE)
        yield lambda: [json.loads(message)["headers"]["task"] for message in client.lrange(QUEUE, 0, -1)]
        client.delete(QUEUE)


def test_a_model_is_rung_once_for_all_work_that_is_due_at_the_same_time(
    settings: Settings, database: Database, ringer: Ringer, sent_tasks: Callable[[], list[str]]
) -> None:
    first, second = (samples.register_sample(settings, database) for _ in range(2))
    due_at = now() + timedelta(minutes=1)
    for _ in range(3):
        ringer.ring_when_due(NewWork(frozenset([first]), due_at, 60.0))
        wait_until(lambda: len(sent_tasks()) == 1, "the first ring is sent")
    ringer.ring_when_due(NewWork(frozenset([first, second]), due_at, 60.0))
    wait_until(lambda: len(sent_tasks()) == 2, "the other model is rung")
    ringer.ring_when_due(NewWork(frozenset([first]), due_at + timedelta(seconds=1), 60.0))
    wait_until(lambda: len(sent_tasks()) == 3, "later work is rung for")
    for count in (4, 5):
        ringer.ring_when_due(NewWork(frozenset([first]), now(), 0.0))
        wait_until(lambda count=count: len(sent_tasks()) == count, "due work is rung for at once")  # type: ignore[misc]
    assert sent_tasks() == [FORGET_TASK] * 5


def test_a_ring_without_delay_is_always_sent(
    settings: Settings, database: Database, ringer: Ringer, sent_tasks: Callable[[], list[str]]
) -> None:
    model_id = samples.register_sample(settings, database)
    ringer.ring([model_id], delay_seconds=60.0)
    wait_until(lambda: len(sent_tasks()) == 1, "the delayed ring is sent")
    for count in (2, 3):
        ringer.ring([model_id])
        wait_until(lambda count=count: len(sent_tasks()) == count, "the ring is sent")  # type: ignore[misc]
    ringer.ring([model_id], task=CHECK_TASK)
    wait_until(lambda: CHECK_TASK in sent_tasks(), "the other task is sent")


def test_a_missing_broker_holds_nobody_up(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    ringer = Ringer(Doorbell("redis://127.0.0.1:1", database))
    started = time.monotonic()
    ringer.ring([model_id] * 100)
    assert time.monotonic() - started < 0.5
    with pytest.raises(Exception, match="refused"):
        ringer.ping()
    ringer.close()
