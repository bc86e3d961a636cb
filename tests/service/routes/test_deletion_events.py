"""The history of a deletion, as a list and as a stream that a real client reads to its end."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import httpx
import pytest
from sqlalchemy import update

from service.routes import deletion_events
from service.settings import Settings
from service.store.batches.lifecycle import fail_batch
from service.store.clock import current_time
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Token
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_deletions_changes import claim, fail, request_deletion

PATH = "/api/v1/deletions"


def actions(api: Api, deletion_id: str) -> list[str]:
    items = api.call(Role.AUDITOR, "GET", f"{PATH}/{deletion_id}/events").json()["items"]
    assert [item["id"] for item in items] == sorted(item["id"] for item in items)
    return [item["action"] for item in items]


def read_stream(api: Api, deletion_id: str, queue: Queue[str], headers: dict[str, str] | None = None) -> None:
    """Read the stream until the server ends it, each line into the queue."""
    request_headers = {
        "Authorization": f"Bearer {api.tokens[Role.AUDITOR]}",
        "Accept": "text/event-stream",
        **(headers or {}),
    }
    with httpx.stream("GET", f"{api.url}{PATH}/{deletion_id}/events", headers=request_headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            queue.put(line)


def read_until(queue: Queue[str], last: str) -> list[str]:
    lines = [queue.get(timeout=20)]
    while lines[-1] != last:
        lines.append(queue.get(timeout=20))
    return lines


def test_the_history_has_every_batch_and_names_no_other_deletion(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    other = request_deletion(api, person=5)
    fail(database, model_id, "disk full")
    api.call(Role.OPERATOR, "POST", f"{PATH}/{deletion_id}/retry")
    fail(database, model_id, "still full")
    answer = api.call(Role.AUDITOR, "GET", f"{PATH}/{deletion_id}/events")
    events = [(item["actor"], item["action"]) for item in answer.json()["items"]]
    assert events == [
        ("acme-compliance", "deletion.received"),
        ("worker", "batch.claimed"),
        ("worker", "batch.failed"),
        ("acme-operator", "deletion.retried"),
        ("worker", "batch.claimed"),
        ("worker", "batch.failed"),
    ]
    assert [item["details"].get("reason") for item in answer.json()["items"]][2::3] == ["disk full", "still full"]
    assert other not in answer.text
    assert actions(api, other) == ["deletion.received", "batch.claimed", "batch.failed"]


def test_batches_of_the_model_without_the_deletion_are_left_out(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    cancelled = request_deletion(api)
    api.call(Role.OPERATOR, "DELETE", f"{PATH}/{cancelled}")
    request_deletion(api, person=5)
    fail(database, model_id)
    assert actions(api, cancelled) == ["deletion.received", "deletion.cancelled"]


def test_a_stream_sends_past_events_then_new_ones_and_ends(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    queue: Queue[str] = Queue()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_stream, api, deletion_id, queue)
        first = read_until(queue, "event: deletion.received")
        assert first[0].startswith("id: ")
        claimed = claim(database, model_id)
        assert claimed is not None
        read_until(queue, "event: batch.claimed")
        with database.writing() as session:
            fail_batch(session, claimed.batch_id, "disk full", permanent=True, max_attempts=3)
        read_until(queue, "event: batch.failed")
        data = json.loads(queue.get(timeout=20).removeprefix("data: "))
        assert (data["action"], data["details"]["reason"]) == ("batch.failed", "disk full")
        assert read_until(queue, "data: failed")[-2:] == ["event: end", "data: failed"]
        reading.result(timeout=20)


def test_a_resumed_stream_repeats_nothing(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    deletion_id = request_deletion(api, person=999)
    whole: Queue[str] = Queue()
    read_stream(api, deletion_id, whole)
    lines = read_until(whole, "data: completed")
    assert [line for line in lines if line.startswith("event")] == [
        "event: deletion.received",
        "event: deletion.completed",
        "event: absence.certified",
        "event: end",
    ]
    remaining: Queue[str] = Queue()
    read_stream(api, deletion_id, remaining, headers={"Last-Event-ID": lines[0].removeprefix("id: ")})
    again = read_until(remaining, "data: completed")
    assert [line for line in again if line.startswith("event")] == [
        "event: deletion.completed",
        "event: absence.certified",
        "event: end",
    ]


def test_a_silent_stream_has_heartbeats(
    api: Api, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_events, "HEARTBEAT_POLLS", 1)
    samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    queue: Queue[str] = Queue()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_stream, api, deletion_id, queue)
        read_until(queue, ": pending")
        api.call(Role.OPERATOR, "DELETE", f"{PATH}/{deletion_id}")
        assert "event: deletion.cancelled" in read_until(queue, "data: cancelled")
        reading.result(timeout=20)


@pytest.mark.parametrize("change", ["revoked_at", "expires_at"])
def test_a_stream_ends_with_its_token(api: Api, settings: Settings, database: Database, change: str) -> None:
    samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    queue: Queue[str] = Queue()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_stream, api, deletion_id, queue)
        read_until(queue, "event: deletion.received")
        with database.writing() as session:
            session.execute(update(Token).values({change: current_time(session)}))
        assert "event: refused" in read_until(queue, f"data: {deletion_events.NO_LONGER_VALID}")
        reading.result(timeout=20)


def test_a_stream_of_an_unknown_deletion_is_a_problem(api: Api) -> None:
    answer = api.call(Role.AUDITOR, "GET", f"{PATH}/{uuid.uuid4()}/events", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
