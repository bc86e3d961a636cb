from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import update

from service.settings import Settings
from service.store.batches.doorbell import CHECK_TASK, Doorbell
from service.store.database import Database
from service.store.tables import Model
from tests import samples

LARGEST_MESSAGE = 1500


@pytest.fixture
def client(settings: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as opened:
        opened.delete("lethe.cpu", "lethe.cuda")
        yield opened


def arguments(message: bytes) -> list[Any]:
    message_arguments: list[Any] = json.loads(base64.b64decode(json.loads(message)["body"]))[0]
    return message_arguments


def test_a_model_that_needs_a_gpu_has_a_queue_of_its_own(
    settings: Settings, database: Database, client: redis.Redis
) -> None:
    plain, demanding = (samples.register_sample(settings, database) for _ in range(2))
    with database.writing() as session:
        session.execute(update(Model).where(Model.id == demanding).values(device="cuda"))
    doorbell = Doorbell(settings.broker, database)
    for model_id in (plain, demanding):
        assert doorbell.ring(model_id)
        assert doorbell.ring(model_id, task=CHECK_TASK)
    doorbell.close()
    for queue, model_id in (("lethe.cpu", plain), ("lethe.cuda", demanding)):
        messages = client.lrange(queue, 0, -1)
        assert [arguments(message)[0] for message in messages] == [str(model_id)] * 2
        assert max(map(len, messages)) < LARGEST_MESSAGE


def test_an_unknown_model_wakes_any_worker(settings: Settings, database: Database, client: redis.Redis) -> None:
    doorbell = Doorbell(settings.broker, database)
    assert doorbell.ring(uuid.uuid4())
    doorbell.close()
    assert (client.llen("lethe.cpu"), client.llen("lethe.cuda")) == (1, 0)


def test_an_unavailable_database_is_not_an_error(settings: Settings) -> None:
    unreachable = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    doorbell = Doorbell(settings.broker, unreachable)
    assert doorbell.ring(uuid.uuid4()) is False
    doorbell.close()
    unreachable.close()
