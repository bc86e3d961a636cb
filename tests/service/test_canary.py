"""An identity sent with every request is stored nowhere: not in tables, Redis, logs or answers.

tests/end_to_end/test_canary.py covers workers, files and callbacks.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import redis

from service.logs import configure_logging
from service.settings import Settings
from service.store import audit
from service.store.access.identities import Identity, IdentityHasher
from service.store.database import Database
from tests.canaries import CANARIES, CRASHING, ENCODINGS, find_leaks, redis_contents, table_contents
from tests.canary_requests import all_requests, register, response_bytes
from tests.service.conftest import Api

EMAIL = CANARIES["email"]


@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("encoding", [*ENCODINGS, "base64 at 0", "base64 at 1", "base64 at 2"])
def test_the_scanner_finds_each_canary_in_each_encoding(kind: str, encoding: str) -> None:
    value = CANARIES[kind].encode()
    if encoding.startswith("base64"):
        hidden = base64.b64encode(b"x" * int(encoding[-1]) + value + b"and so on")
    else:
        hidden = ENCODINGS[encoding](value)
    assert find_leaks(b"\0\xff" + hidden + b"\0\xff")
    assert not find_leaks(b"\0\xff" + hidden[: len(hidden) // 2] + b"\0\xff")


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"import_root": tmp_path})


@pytest.fixture
def _crashing_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IdentityHasher.lookup

    def lookup(hasher: IdentityHasher, identity: Identity) -> bytes:
        if identity.value == CRASHING:
            raise ValueError(f"cannot make anything of {identity.value!r}")
        return original(hasher, identity)

    monkeypatch.setattr(IdentityHasher, "lookup", lookup)


@pytest.mark.usefixtures("_crashing_lookup")
def test_no_route_leaks_an_identity(
    capfd: pytest.CaptureFixture[str], api: Api, database: Database, broker: str
) -> None:
    configure_logging("DEBUG", sees_identities=True)
    model_id = register(api, "sample")
    for request in all_requests(model_id):
        answer = request.send(api)
        assert not find_leaks(response_bytes(answer)), request
    assert not find_leaks(api.call(None, "GET", "/metrics").content)
    client = redis.Redis.from_url(broker.replace("redis+socket://", "unix://"))
    stored = [*table_contents(database), *redis_contents(client)]
    assert {"table subjects", "table deletions", "table idempotency_keys", "redis b'lethe.cpu'"} <= {
        name for name, _ in stored
    }
    assert {name: leaks for name, content in stored if (leaks := find_leaks(content))} == {}
    logged = capfd.readouterr()
    assert logged.out.count("request.crashed") == 5
    assert "in lookup" in logged.out
    assert find_leaks((logged.out + logged.err).encode()) == set()
    _assert_planted_canaries_are_detected(database, client)


def _assert_planted_canaries_are_detected(database: Database, client: redis.Redis) -> None:
    with database.writing() as session:
        audit.record(session, EMAIL, "test", "nobody")
    client.lpush("planted", base64.b64encode(EMAIL.encode()))
    names = {name for name, content in [*table_contents(database), *redis_contents(client)] if find_leaks(content)}
    client.delete("planted")
    client.close()
    assert names == {"table audit_entries", "redis b'planted'"}
