"""A token bucket for each token, shared by all processes that use one Redis."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import httpx
import pytest

from service.http.rate_limits import RateLimits
from service.settings import Settings
from service.store.access.identities import IdentityHasher
from service.store.database import Database
from service.store.states import Role
from tests.service.conftest import Api, serving

PATH = "/api/v1/deletions"
MAC = IdentityHasher(bytes(range(32))).mac


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """So slow that no bucket fills while a key for signatures is made."""
    return settings.model_copy(update={"rate_per_second": 0.01, "rate_burst": 3})


@pytest.fixture(autouse=True)
def _a_patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a second is soon over, and with it the limits."""
    monkeypatch.setattr("service.http.rate_limits.TIMEOUT_SECONDS", 30.0)


def call(api: Api, role: Role, path: str = PATH) -> httpx.Response:
    return api.call(role, "GET", path)


def test_past_the_burst_it_is_429_with_a_time_to_wait(api: Api) -> None:
    assert [call(api, Role.COMPLIANCE).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = call(api, Role.COMPLIANCE)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:lethe:problem:too-many-requests"
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert call(api, Role.OPERATOR).status_code == 200, "another token has a bucket of its own"


def test_comes_before_the_body_is_read(api: Api, settings: Settings) -> None:
    for _ in range(3):
        call(api, Role.COMPLIANCE)
    too_large = b" " * (settings.max_body_bytes + 1)
    assert api.call(Role.COMPLIANCE, "POST", PATH, content=too_large).status_code == 429


@pytest.mark.parametrize("collection", ["/v2/requests", "/v1/opengdpr_requests"])
def test_opendsr_is_answered_in_its_own_shape_and_signed(api: Api, collection: str) -> None:
    path = f"{collection}/{uuid.uuid4()}"
    assert [call(api, Role.COMPLIANCE, path).status_code for _ in range(4)] == [404, 404, 404, 429]
    refused = call(api, Role.COMPLIANCE, path)
    error = refused.json()["error"]
    assert (error["code"], error["errors"][0]["reason"]) == (429, "too_many_requests")
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert refused.headers["Cache-Control"] == "no-store"
    assert any(name.endswith("-signature") for name in refused.headers)


def test_requests_without_a_token_have_no_bucket(api: Api) -> None:
    assert {api.call(None, "GET", PATH).status_code for _ in range(6)} == {401}


def test_without_a_broker_everybody_may_pass(settings: Settings, database: Database, tmp_path: Path) -> None:
    nowhere = settings.model_copy(update={"redis_url": type(settings.redis_url)(f"redis+socket://{tmp_path}/none")})
    with serving(nowhere, database) as api:
        started = time.monotonic()
        assert {call(api, Role.COMPLIANCE).status_code for _ in range(8)} == {200}
        assert time.monotonic() - started < 5


def test_two_processes_share_a_bucket_and_it_fills_again(broker: str) -> None:
    async def scene() -> None:
        token = f"token-{uuid.uuid4()}"
        first, second = (RateLimits(broker, rate=1.0, burst=4, mac=MAC) for _ in range(2))
        passed = [await limits.delay(token) == 0 for limits in (first, second, first, second, first, second)]
        assert passed == [True] * 4 + [False] * 2
        delay = await second.delay(token)
        assert 0 < delay <= 1
        await asyncio.sleep(delay)
        assert await second.delay(token) == 0
        await first.close()
        await second.close()

    asyncio.run(scene())


def test_a_large_bucket_is_spent_in_shares_and_to_the_last(broker: str) -> None:
    async def scene() -> None:
        token = f"token-{uuid.uuid4()}"
        limits = RateLimits(broker, rate=100.0, burst=1_000, mac=MAC)
        delays = await asyncio.gather(*(limits.delay(token) for _ in range(3_000)))
        passed = delays.count(0.0)
        await limits.close()
        assert 1_000 <= passed < 1_000 + 100 * 10, "the burst, and what came in while it was spent"

    asyncio.run(scene())
