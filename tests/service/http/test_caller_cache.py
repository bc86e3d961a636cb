from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from sqlalchemy import delete, select

from service.http import caller_cache
from service.http.caller_cache import CallerCache
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Token
from tests.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def issue(database: Database, name: str = "acme") -> str:
    with database.writing() as session:
        return issue_token(session, name, Role.AUDITOR, actor="test")


def test_a_token_is_not_remembered_beyond_its_expiry(database: Database) -> None:
    with database.writing() as session:
        secret = issue_token(session, "acme", Role.AUDITOR, "test", lifetime=timedelta(milliseconds=300))
    cache = CallerCache(database, seconds=60.0)
    caller = asyncio.run(cache.find(secret))
    assert caller is not None
    (entry,) = cache._entries.values()
    assert entry.until - time.monotonic() <= 0.3
    wait_until(lambda: asyncio.run(cache.find(secret)) is None, "the token has expired")


def delete_tokens(database: Database) -> None:
    with database.writing() as session:
        session.execute(delete(Token))


def test_a_valid_token_is_remembered_for_a_while(database: Database) -> None:
    secret, cache = issue(database), CallerCache(database, seconds=60.0)
    caller = asyncio.run(cache.find(secret))
    assert caller is not None
    assert (caller.name, caller.role) == ("acme", Role.AUDITOR)
    delete_tokens(database)
    assert asyncio.run(cache.find(secret)) == caller
    assert asyncio.run(CallerCache(database, seconds=60.0).find(secret)) is None


def test_without_a_cache_time_every_request_asks(database: Database) -> None:
    secret, cache = issue(database), CallerCache(database, seconds=0.0)
    assert asyncio.run(cache.find(secret)) is not None
    delete_tokens(database)
    assert asyncio.run(cache.find(secret)) is None


def test_unknown_tokens_are_not_remembered(database: Database) -> None:
    cache = CallerCache(database, seconds=60.0)
    assert asyncio.run(cache.find("secret")) is None
    assert cache._entries == {}
    with database.reading() as session:
        assert session.scalars(select(Token)).all() == []


def test_the_cache_has_a_limit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_cache, "MAX_ENTRIES", 2)
    cache = CallerCache(database, seconds=60.0)
    for number in range(5):
        asyncio.run(cache.find(issue(database, f"caller-{number}")))
        assert len(cache._entries) <= 2
