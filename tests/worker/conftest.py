from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from service.settings import Settings
from service.store.batches.doorbell import QUEUES
from service.store.states import Device
from worker.context import WorkerContext


@pytest.fixture
def context(settings: Settings) -> Iterator[WorkerContext]:
    opened = WorkerContext.open(settings)
    yield opened
    opened.doorbell.close()
    opened.database.close()


@pytest.fixture
def queue(settings: Settings) -> Iterator[redis.Redis]:
    """The broker, with nothing in the queue that any worker serves."""
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete(QUEUES[Device.CPU])
        yield client
        client.delete(QUEUES[Device.CPU])
