"""The largest inputs of each endpoint, while a probe measures what the event loop computes between two of its turns.

Processor time of the loop's own thread, not elapsed time: it does not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from starlette.types import ASGIApp, Receive, Scope, Send

from service.app import create_app, prepare_routes
from service.settings import Settings
from service.store.database import Database
from service.store.signing import processor_identity
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api, serving

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
LONGEST_SECONDS = 0.05
DELETIONS = "/api/v1/deletions"
BULK = f"{DELETIONS}/bulk"
JSON = {"Content-Type": "application/json"}


@dataclass
class Probe:
    """Application that measures the turns of the event loop that serves it."""

    app: ASGIApp
    turns: list[float] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._task = asyncio.create_task(self._measure())
        await self.app(scope, receive, send)

    async def _measure(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.turns.append(time.thread_time() - before)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> list[Probe]:
    """Probes of the servers that the test starts."""
    probes: list[Probe] = []

    def create_probed(settings: Settings) -> Any:
        app = create_app(settings)
        prepare_routes(app)
        probes.append(Probe(app))
        return probes[-1]

    monkeypatch.setattr("tests.service.conftest.create_app", create_probed)
    monkeypatch.setattr(processor_identity, "KEY_BITS", 2048)
    return probes


@pytest.fixture
def api(settings: Settings, database: Database, probe: list[Probe]) -> Iterator[Api]:
    unlimited = settings.model_copy(update={"rate_per_second": 1e6, "rate_burst": 1_000_000})
    with serving(unlimited, database) as served:
        yield served


def objects(count: int, members: int) -> list[dict[str, int]]:
    return [{f"name-{number}": number for number in range(members)} for _ in range(count)]


def deletion(subjects: int) -> bytes:
    people = [{"identity_type": "email", "identity_value": f"{number}-" + "é" * 500} for number in range(subjects)]
    urls = [f"https://compliance.example/{'a' * 900}/{number}" for number in range(5)]
    return json.dumps({"subjects": people, "callback_urls": urls}).encode()


def register(api: Api, **parts: object) -> int:
    files = {**samples.parts(), **parts}
    return api.call(Role.ENGINEER, "POST", "/api/v1/models", files=files).status_code


def post(api: Api, path: str, content: bytes) -> int:
    headers = {**JSON, "Idempotency-Key": str(uuid.uuid4())}
    return api.call(Role.COMPLIANCE, "POST", path, content=content, headers=headers).status_code


def longest_turn(probe: Probe) -> float:
    probe.turns.append(0.0)
    return max(probe.turns)


@ON_SQLITE
def test_large_bodies_do_not_occupy_the_event_loop(api: Api, probe: list[Probe], settings: Settings) -> None:
    limit = settings.max_body_bytes
    many_members = json.dumps(objects(1, 40_000)[0]).encode()
    inputs = {
        "the largest deletion": (DELETIONS, deletion(100).ljust(limit), 201),
        "many unknown members": (DELETIONS, many_members, 422),
        "many objects": (DELETIONS, json.dumps({"subjects": objects(200_000, 0)}).encode()[:limit], 422),
        "objects of many members": (DELETIONS, json.dumps({"subjects": objects(99, 60)}).encode(), 422),
        "nesting": (DELETIONS, b"[" * limit, 422),
        "a long number": (DELETIONS, b"9" * limit, 422),
        "OpenDSR of many members": ("/v2/requests", many_members, 400),
        "a bulk of invalid lines": (BULK, (json.dumps(objects(1, 60)[0]).encode() + b"\n") * 500, 200),
        "a bulk of empty lines": (BULK, b"\n" * settings.max_bulk_bytes, 422),
        "a bulk of one line": (BULK, b'{"subjects":[' + b"{}," * (settings.max_bulk_bytes // 3 - 10), 200),
    }
    turns = {}
    for name, (path, content, status) in inputs.items():
        probe[0].turns.clear()
        assert post(api, path, content) == status, name
        turns[name] = longest_turn(probe[0])
    assert not {name: seconds for name, seconds in turns.items() if seconds > LONGEST_SECONDS}


@ON_SQLITE
def test_large_registrations_do_not_occupy_the_event_loop(api: Api, probe: list[Probe]) -> None:
    parts = {"manifest": json.dumps(objects(1, 200_000)[0]), "subjects": json.dumps([samples.person(1)] * 50_000)}
    turns = {}
    for name, part in parts.items():
        probe[0].turns.clear()
        assert register(api, **{name: part}) == 422
        turns[name] = longest_turn(probe[0])
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    probe[0].turns.clear()
    answer = api.call(Role.ENGINEER, "POST", "/api/v1/models", content=b"--b\r\n" * 500_000, headers=headers)
    assert answer.status_code == 400
    turns["many parts"] = longest_turn(probe[0])
    assert not {name: seconds for name, seconds in turns.items() if seconds > LONGEST_SECONDS}


@ON_SQLITE
def test_large_answers_do_not_occupy_the_event_loop(api: Api, probe: list[Probe]) -> None:
    turns = {}
    for name, send in {
        "a bulk": lambda: post(api, BULK, (deletion(1) + b"\n") * 500),
        "the OpenAPI document": lambda: api.call(None, "GET", "/openapi.json").status_code,
        "a list": lambda: api.call(Role.AUDITOR, "GET", f"{DELETIONS}?limit=200").status_code,
        "a file": lambda: api.call(Role.AUDITOR, "GET", f"{DELETIONS}.csv").status_code,
    }.items():
        probe[0].turns.clear()
        assert send() == 200, name
        turns[name] = longest_turn(probe[0])
    assert not {name: seconds for name, seconds in turns.items() if seconds > LONGEST_SECONDS}


@pytest.mark.soak
@ON_SQLITE
def test_the_largest_bulk_and_registration_do_not_occupy_the_event_loop(api: Api, probe: list[Probe]) -> None:
    line = json.dumps({"subjects": [samples.person(number) for number in range(20)]}).encode() + b"\n"
    assert post(api, BULK, line * 10_000) == 200
    rows = 100_000
    points = np.random.default_rng(1).normal(size=(rows, 2))
    people = json.dumps([samples.person(number) for number in range(rows)])
    assert register(api, records=save({"x": points}), subjects=people) == 201
    assert longest_turn(probe[0]) < LONGEST_SECONDS


def test_the_probe_notices_a_computation_on_the_event_loop() -> None:
    async def compute() -> None:
        task = asyncio.create_task(probe._measure())
        await asyncio.sleep(0.01)
        until = time.thread_time() + 2 * LONGEST_SECONDS
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.01)
        task.cancel()

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    probe = Probe(nothing)
    thread = threading.Thread(target=lambda: asyncio.run(compute()))
    thread.start()
    thread.join()
    assert longest_turn(probe) > LONGEST_SECONDS
