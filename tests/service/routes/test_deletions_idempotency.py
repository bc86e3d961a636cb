"""Idempotency keys: one deletion and one answer, even if the request arrives many times at once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text

from service.settings import Settings, new_key
from service.store.access.identity_keys import add_key
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Deletion
from tests import samples
from tests.service.conftest import Api, serving

PATH = "/api/v1/deletions"
BODY = {"subjects": [samples.person(3)]}
KEY = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"idempotency_wait_seconds": 0.2})


def post(api: Api, path: str = PATH) -> httpx.Response:
    """Post a deletion. Its JSON is also a line of NDJSON."""
    return api.call(Role.COMPLIANCE, "POST", path, headers={"Idempotency-Key": KEY}, json=BODY)


@contextmanager
def block_writers(database: Database) -> Iterator[None]:
    with database.writing() as session:
        on_postgresql = session.get_bind().dialect.name == "postgresql"
        # On SQLite a writer is alone from its first statement on.
        session.execute(text("LOCK TABLE deletions IN EXCLUSIVE MODE" if on_postgresql else "SELECT 1"))
        yield


def count_deletions(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(Deletion)) or 0


@pytest.mark.parametrize("path", [PATH, f"{PATH}/bulk"])
def test_a_key_in_flight_is_409_and_later_repeats_the_answer(api: Api, database: Database, path: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        with block_writers(database):
            requests = [pool.submit(post, api, path) for _ in range(2)]
            done, pending = wait(requests, timeout=20, return_when=FIRST_COMPLETED)
            (refused,), (first,) = done, pending
            assert refused.result().status_code == 409
            assert refused.result().json()["type"] == "urn:lethe:problem:key-in-flight"
            assert refused.result().headers["Retry-After"] == "1"
        answered = first.result(timeout=20)
    assert answered.is_success
    assert post(api, path).content == answered.content
    assert count_deletions(database) == 1


def test_two_processes_answer_one_key_once(settings: Settings, database: Database) -> None:
    with serving(settings, database) as first, serving(settings, database) as second, ThreadPoolExecutor(2) as pool:
        for api in (first, second):
            # FastAPI prepares its routes at the first request, which is not safe in two threads of one process.
            assert api.call(None, "POST", PATH).status_code == 401
        with block_writers(database):
            requests = [pool.submit(post, api) for api in (first, second)]
            if database.engine.dialect.name == "postgresql":  # on SQLite the second writer waits for the first
                done, _ = wait(requests, timeout=20, return_when=FIRST_COMPLETED)
                assert [request.result().status_code for request in done] == [409]
        answers = [request.result(timeout=20) for request in requests]
        created = {answer.content for answer in answers if answer.status_code == 201}
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert created == {post(first).content} == {post(second).content}
    assert count_deletions(database) == 1


def test_a_refused_request_does_not_use_up_its_key(api: Api, database: Database) -> None:
    headers = {"Idempotency-Key": "k1"}
    unknown_model = {**BODY, "models": [str(uuid.uuid4())]}
    assert api.call(Role.COMPLIANCE, "POST", PATH, json=unknown_model, headers=headers).status_code == 404
    assert api.call(Role.COMPLIANCE, "POST", PATH, json=BODY, headers=headers).status_code == 201


@pytest.mark.parametrize("kind", ["key", "hash"])
def test_a_key_that_names_the_person_is_refused(api: Api, database: Database, kind: str) -> None:
    value = BODY["subjects"][0]["identity_value"]
    key = f"delete {value}" if kind == "key" else hashlib.sha256(value.encode()).hexdigest()
    for path in (PATH, f"{PATH}/bulk"):
        answer = api.call(Role.COMPLIANCE, "POST", path, json=BODY, headers={"Idempotency-Key": key})
        assert answer.status_code == 422
        assert "use a random key such as a UUID" in answer.text
        assert value not in answer.text
    assert count_deletions(database) == 0


def test_a_callback_url_that_names_the_person_is_refused(api: Api, database: Database) -> None:
    url = f"https://acme.example/{BODY['subjects'][0]['identity_value'].replace('@', '%40')}"
    body = {**BODY, "callback_urls": [url]}
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.callback_urls")
    line = api.call(Role.COMPLIANCE, "POST", f"{PATH}/bulk", json=body).json()
    assert (line["status"], line["problem"]["errors"][0]["field"]) == (422, "callback_urls")
    assert count_deletions(database) == 0


def test_one_key_is_for_one_kind_of_request(api: Api, database: Database) -> None:
    assert post(api).status_code == 201
    answer = post(api, f"{PATH}/bulk")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:lethe:problem:idempotency-mismatch")
    assert count_deletions(database) == 1


def test_after_a_rotation_a_running_api_refuses_until_it_is_restarted(settings: Settings, database: Database) -> None:
    """Otherwise it would sign that people who are held are absent."""
    samples.register_sample(settings, database)
    key = new_key()
    with serving(settings, database) as api:
        assert post(api).status_code == 201
        with database.writing() as session:
            add_key(session, samples.hasher(settings), base64.b64decode(key), actor="operator")
        refused = [
            api.call(Role.COMPLIANCE, "POST", PATH, json=BODY),
            api.call(Role.COMPLIANCE, "POST", f"{PATH}/bulk", json=BODY),
            api.call(Role.ENGINEER, "POST", "/api/v1/models", files=samples.parts()),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:lethe:problem:secret-mismatch")
            assert "LETHE_IDENTITY_KEY" in answer.json()["detail"]
    assert count_deletions(database) == 1
    assert settings.identity_key is not None
    keys = SecretStr(f"{settings.identity_key.get_secret_value()},{key}")
    with serving(settings.model_copy(update={"identity_key": keys}), database) as api:
        answer = api.call(Role.COMPLIANCE, "POST", PATH, json=BODY)
        assert answer.status_code == 201
        assert answer.json()["status"] == "pending"  # the person is found
        assert post(api).status_code == 201  # the first answer
    assert count_deletions(database) == 2


@pytest.mark.slow
def test_a_thousand_identical_posts_are_one_deletion(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    longer_wait = settings.model_copy(update={"idempotency_wait_seconds": 2.0})
    with serving(longer_wait, database) as api:
        answers = asyncio.run(_post_a_thousand_times(api))
    assert len(answers) == 1_000
    assert len(set(answers)) == 1
    assert json.loads(answers[0])["status"] == "pending"
    assert count_deletions(database) == 1


async def _post_a_thousand_times(api: Api) -> list[bytes]:
    """Post with as many connections as the usual limit on open files allows; retry after 409."""
    body = json.dumps(BODY)
    head = (
        f"POST {PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {api.tokens[Role.COMPLIANCE]}",
        f"Idempotency-Key: {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    request, port = "\r\n".join((*head, "", body)).encode(), httpx.URL(api.url).port
    connections = asyncio.Semaphore(400)

    async def post_until_created() -> bytes:
        while True:
            async with connections:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                answer = await reader.read()
                writer.close()
                await writer.wait_closed()
            head, _, content = answer.partition(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 201"):
                return content
            assert head.startswith(b"HTTP/1.1 409"), head
            assert b"retry-after: 1" in head.lower()
            await asyncio.sleep(1)

    return await asyncio.gather(*(post_until_created() for _ in range(1_000)))
