"""A token bucket for each token, shared by all processes that use one Redis."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import httpx
import pytest
import redis

from service.http.rate_limits import RateLimits
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests.service.conftest import Api, serving

PATH = "/api/v1/deletions"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Limits so slow that no bucket refills while a signing key is created."""
    return settings.model_copy(update={"rate_per_second": 0.01, "rate_burst": 3})


@pytest.fixture(autouse=True)
def _long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits must not be switched off because the machine is busy."""
    monkeypatch.setattr("service.http.rate_limits.TIMEOUT_SECONDS", 30.0)


def call(api: Api, role: Role, path: str = PATH) -> httpx.Response:
    return api.call(role, "GET", path)


def test_after_the_burst_requests_are_429_with_a_time_to_wait(api: Api) -> None:
    assert [call(api, Role.COMPLIANCE).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = call(api, Role.COMPLIANCE)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:lethe:problem:too-many-requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert call(api, Role.OPERATOR).status_code == 200, "another token has its own bucket"


def test_the_limit_applies_before_the_body_is_read(api: Api, settings: Settings) -> None:
    for _ in range(3):
        call(api, Role.COMPLIANCE)
    too_large = b" " * (settings.max_body_bytes + 1)
    assert api.call(Role.COMPLIANCE, "POST", PATH, content=too_large).status_code == 429


@pytest.mark.parametrize("collection", ["/v2/requests", "/v1/opengdpr_requests"])
def test_opendsr_has_its_own_format_and_signature(api: Api, collection: str) -> None:
    path = f"{collection}/{uuid.uuid4()}"
    assert [call(api, Role.COMPLIANCE, path).status_code for _ in range(4)] == [404, 404, 404, 429]
    refused = call(api, Role.COMPLIANCE, path)
    error = refused.json()["error"]
    assert (error["code"], error["errors"][0]["reason"]) == (429, "too_many_requests")
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert refused.headers["Cache-Control"] == "no-store"
    assert any(name.endswith("-signature") for name in refused.headers)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_spelling_of_the_header_makes_no_new_bucket(api: Api) -> None:
    token = api.tokens[Role.COMPLIANCE]
    spellings = (f"Bearer {token}", f"bearer  {token}", f"BEARER {token}", f"bEARER\t {token}", f"Bearer   {token}")
    statuses = [
        api.call(None, "GET", PATH, headers={"Authorization": spelling}).status_code for spelling in spellings * 2
    ]
    assert statuses.count(200) == 3
    assert set(statuses) <= {200, 401, 429}


def test_the_lines_of_a_bulk_count_and_may_be_spent_in_advance(settings: Settings, database: Database) -> None:
    faster = settings.model_copy(update={"rate_per_second": 1.0, "rate_burst": 10})
    line = '{"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]}\n'
    with serving(faster, database) as api:
        assert api.call(Role.COMPLIANCE, "POST", f"{PATH}/bulk", content=line * 40).status_code == 200
        refused = call(api, Role.COMPLIANCE)
        assert refused.status_code == 429
        assert 25 <= int(refused.headers["Retry-After"]) <= 32
        assert call(api, Role.OPERATOR).status_code == 200


def test_a_bucket_knows_the_id_of_the_token_only(api: Api, broker: str) -> None:
    call(api, Role.COMPLIANCE)
    with redis.Redis.from_url(broker.replace("redis+socket://", "unix://")) as client:
        names = [name.decode() for name in client.keys("lethe:rate:*")]
    assert names
    assert all(uuid.UUID(name.removeprefix("lethe:rate:")) for name in names)


def test_without_a_broker_all_requests_pass(settings: Settings, database: Database, tmp_path: Path) -> None:
    without_broker = settings.model_copy(
        update={"redis_url": type(settings.redis_url)(f"redis+socket://{tmp_path}/none")}
    )
    with serving(without_broker, database) as api:
        started = time.monotonic()
        assert {call(api, Role.COMPLIANCE).status_code for _ in range(8)} == {200}
        assert time.monotonic() - started < 5


def test_two_processes_share_a_bucket_that_refills(broker: str) -> None:
    async def scenario() -> None:
        token = uuid.uuid4()
        first, second = (RateLimits(broker, rate=1.0, burst=4) for _ in range(2))
        passed = [await limits.delay(token) == 0 for limits in (first, second, first, second, first, second)]
        assert passed == [True] * 4 + [False] * 2
        delay = await second.delay(token)
        assert 0 < delay <= 1
        await asyncio.sleep(delay)
        assert await second.delay(token) == 0
        await first.close()
        await second.close()

    asyncio.run(scenario())


def test_a_large_bucket_is_spent_completely_in_shares(broker: str) -> None:
    async def scenario() -> None:
        token = uuid.uuid4()
        limits = RateLimits(broker, rate=100.0, burst=1_000)
        delays = await asyncio.gather(*(limits.delay(token) for _ in range(3_000)))
        passed = delays.count(0.0)
        await limits.close()
        assert 1_000 <= passed < 1_000 + 100 * 10, "the burst, and what was refilled meanwhile"

    asyncio.run(scenario())
