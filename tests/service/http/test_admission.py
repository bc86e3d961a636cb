"""Requests with and without a valid token, before their body is read."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests.service.conftest import Api, serving

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PATH = "/api/v1/deletions"
BODY = {"subjects": [{"identity_type": "email", "identity_value": "ada@example.org"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = {"refused_tokens_per_second": 0.01, "refused_tokens_burst": 3, "token_cache_seconds": 0.0}
    return settings.model_copy(update={**limits, "trusted_proxies": "127.0.0.1"})


def statuses(api: Api, count: int, **headers: str) -> list[int]:
    return [api.call(None, "GET", PATH, headers=headers).status_code for _ in range(count)]


def test_refused_tokens_count_against_the_address_and_valid_ones_pass(api: Api) -> None:
    assert statuses(api, 2) == [401, 401]
    assert statuses(api, 3, Authorization="Bearer guess") == [401, 429, 429]
    refused = api.call(None, "GET", PATH)
    assert refused.json()["type"] == "urn:lethe:problem:too-many-requests"
    assert "address" in refused.json()["detail"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 100
    assert api.call(Role.AUDITOR, "GET", PATH).status_code == 200
    assert api.call(None, "GET", "/healthz").status_code == 200
    assert api.call(None, "GET", "/v2/requests/0").json()["error"]["code"] == 429


def test_a_trusted_proxy_names_the_address(api: Api) -> None:
    assert statuses(api, 4, **{"X-Forwarded-For": "192.0.2.1"})[-1] == 429
    assert statuses(api, 1, **{"X-Forwarded-For": "192.0.2.2"}) == [401]
    spoofed = "192.0.2.77, 192.0.2.1"  # the client sent the first, the proxy added the second
    assert statuses(api, 1, **{"X-Forwarded-For": spoofed}) == [429]


def test_a_peer_that_is_no_trusted_proxy_does_not_name_the_address(settings: Settings, database: Database) -> None:
    with serving(settings.model_copy(update={"trusted_proxies": ""}), database) as api:
        answers = [statuses(api, 1, **{"X-Forwarded-For": f"192.0.2.{number}"}) for number in range(4)]
    assert answers == [[401], [401], [401], [429]]


def test_the_body_of_a_stranger_is_not_read(api: Api, settings: Settings) -> None:
    too_large = b" " * (settings.max_body_bytes + 1)
    assert api.call(None, "POST", PATH, content=too_large).status_code == 401
    assert api.call(None, "POST", PATH, content=iter([b"{"])).status_code == 401
    assert api.call(None, "POST", "/v2/requests", json=BODY).json()["error"]["code"] == 401
    assert api.call(Role.COMPLIANCE, "POST", PATH, json=BODY).status_code == 201


def test_an_unavailable_database_is_503(api: Api, database: Database) -> None:
    with database.writing() as session:
        session.execute(text("ALTER TABLE tokens RENAME TO hidden"))
    assert api.call(Role.AUDITOR, "GET", PATH).status_code == 503
    assert api.call(None, "GET", "/healthz").status_code == 200
