"""Many deletions in one request, as NDJSON."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from lethe.verify import Unconfirmed, Verified, verify
from service.intake import submission
from service.settings import Settings
from service.store.database import Database
from service.store.signing.keys import configured_signer
from service.store.states import Role
from service.store.tables import Absence, AuditEntry, Deletion, DeletionSubject, DeletionTarget, IdempotencyKey
from tests import samples
from tests.service.conftest import Api, serving

PATH = "/api/v1/deletions/bulk"
KEY = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


def post_bulk(api: Api, *lines: object, key: str | None = None) -> Any:
    content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return api.call(Role.COMPLIANCE, "POST", PATH, content=content, headers={"Idempotency-Key": key} if key else {})


def results(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def person(number: int, **more: object) -> dict[str, object]:
    return {"subjects": [samples.person(number)], **more}


def count(database: Database, table: type[Any], *conditions: Any) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(table).where(*conditions)) or 0


def test_each_good_line_is_a_deletion_like_any_other(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    held, unknown = results(post_bulk(api, person(3), person(99, regulation="ccpa")))
    assert (held["line"], held["status"], held["deletion_status"]) == (1, 201, "pending")
    assert (unknown["line"], unknown["status"], unknown["deletion_status"]) == (2, 201, "completed")
    assert (held["models"], held["absence"], unknown["models"]) == ([str(model_id)], None, [])
    key = configured_signer(settings).public_pem.encode()
    for result in (held, unknown):
        receipt = verified_so_far(result["receipt"].encode(), key)
        assert receipt.predicate["deletion"] == result["id"]
        assert receipt.predicate["subjects"] == result["subjects"]
        shown = api.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{result['id']}").json()
        assert (shown["status"], shown["subjects"]) == (result["deletion_status"], result["subjects"])
        assert count(database, AuditEntry, AuditEntry.concerns == result["id"]) == (1 if result is held else 3)
    absence = api.call(Role.COMPLIANCE, "GET", unknown["absence"]).content
    assert verified_so_far(absence, key).kind == "certificate of absence"


def verified_so_far(bundle: bytes, key: bytes) -> Verified:
    """Verify a bundle whose entry in the log is still to come."""
    with pytest.raises(Unconfirmed, match="in the log") as early:
        verify(bundle, key)
    return early.value.so_far


def test_an_invalid_line_does_not_affect_the_others(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    canary = "canary-77aa@example.org"
    bad = {"subjects": [{"identity_type": "E MAIL", "identity_value": canary}]}
    misspelt = {"subjects": [samples.person(2)], canary: 1}
    unknown_model = person(4, models=[str(uuid.uuid4())])
    answer = post_bulk(api, person(1), bad, "", f'{{"subjects": "{canary}', misspelt, unknown_model, person(5))
    lines = results(answer)
    assert [(result["line"], result["status"]) for result in lines] == [
        (1, 201),
        (2, 422),
        (4, 422),
        (5, 422),
        (6, 404),
        (7, 201),
    ]
    assert lines[1]["problem"]["errors"][0]["field"] == "subjects.0.identity_type"
    assert lines[4]["problem"]["type"] == "urn:lethe:problem:not-found"
    assert canary not in answer.text
    assert count(database, Deletion) == 2


def test_the_same_key_repeats_the_whole_answer(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    first = post_bulk(api, person(1), person(99), "no json", key=KEY)
    again = post_bulk(api, person(1), person(99), "no json", key=KEY)
    assert results(first)[0]["status"] == 201
    assert first.content == again.content
    assert count(database, Deletion) == 2
    other = post_bulk(api, person(2), key=KEY)
    assert (other.status_code, other.json()["type"]) == (422, "urn:lethe:problem:idempotency-mismatch")


def test_a_bulk_of_which_nothing_was_stored_does_not_use_up_its_key(api: Api, database: Database) -> None:
    assert post_bulk(api, "no json", key=KEY).content == post_bulk(api, "no json", key=KEY).content
    assert count(database, IdempotencyKey) == 0
    assert results(post_bulk(api, person(1), key=KEY))[0]["status"] == 201


def test_a_bulk_that_fails_on_the_way_says_which_lines_are_stored_and_continues_when_repeated(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [person(number) for number in range(100, 107)]
    monkeypatch.setattr("service.intake.bulk.LINES_PER_SLICE", 2)
    with monkeypatch.context() as fault:
        fault.setattr(submission, "store_deletions", failing_at(3))
        first = results(post_bulk(api, *people, key=KEY))
    assert [line["status"] for line in first] == [201] * 4 + [503] * 3
    assert first[4]["problem"]["type"] == "urn:lethe:problem:database-away"
    assert count(database, Deletion) == 4
    again = post_bulk(api, *people, key=KEY)
    assert [line["status"] for line in results(again)] == [201] * 7
    assert results(again)[:4] == first[:4]
    assert post_bulk(api, *people, key=KEY).content == again.content
    assert count(database, Deletion) == 7
    changed = post_bulk(api, *people[:-1], person(1), key=KEY)
    assert changed.status_code == 422


def test_a_bulk_that_fails_at_once_stores_nothing(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "store_deletions", failing_at(1))
    assert post_bulk(api, person(1), person(2)).status_code == 503
    assert count(database, Deletion) == 0


def failing_at(call: int) -> Callable[..., Any]:
    """Return `store_deletions` with a database that is lost in the given call and later ones."""
    calls = itertools.count(1)
    store = submission.store_deletions

    def store_or_fail(*arguments: Any) -> Any:
        stored = store(*arguments)
        if next(calls) >= call:
            raise OperationalError("statement", {}, Exception("connection lost"))
        return stored

    return store_or_fail


@pytest.mark.parametrize("lines", [[], ["", " "], ["{}"] * 10_001])
def test_no_line_or_too_many_are_refused_as_a_whole(api: Api, database: Database, lines: list[str]) -> None:
    answer = post_bulk(api, *lines)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "send 1 to 10000 deletions, each as JSON on its own line"
    assert count(database, Deletion) == 0


def test_bulk_has_its_own_body_limit(api: Api, settings: Settings) -> None:
    line = json.dumps(person(99))
    over_the_usual = (settings.max_body_bytes // len(line) + 1) * [line]
    assert len(over_the_usual) > 10_000  # so it is the lines that are too many, not the bytes
    assert post_bulk(api, *over_the_usual).status_code == 422
    assert post_bulk(api, " " * (settings.max_bulk_bytes + 1)).status_code == 413


@pytest.mark.soak
def test_ten_thousand_lines_are_all_stored(api: Api, settings: Settings, database: Database) -> None:
    """Every second line names a person whom the model holds."""
    model_id = samples.register_sample(settings, database)
    people = [number % samples.PEOPLE if number % 2 else 1_000 + number for number in range(10_000)]
    lines = results(post_bulk(api, *map(person, people), key="k1"))
    assert [(result["line"], result["status"]) for result in lines] == [(line, 201) for line in range(1, 10_001)]
    assert len({result["id"] for result in lines}) == 10_000
    assert [result["models"] for result in lines] == [[], [str(model_id)]] * 5_000
    assert count(database, Deletion) == count(database, DeletionSubject) == 10_000
    assert count(database, AuditEntry, AuditEntry.action == "deletion.received") == 10_000
    assert count(database, DeletionTarget) == count(database, Absence) == 5_000
    assert count(database, DeletionSubject, DeletionSubject.subject_id.is_not(None)) == 5_000
    assert count(database, Deletion, Deletion.status == "completed") == 5_000


@pytest.mark.soak
def test_the_largest_bulk_delays_single_requests_by_less_than_a_second(settings: Settings, database: Database) -> None:
    """On a quiet machine. On a busy one, by less than a few times what the bulk's own slices take."""
    content = "\n".join(
        json.dumps({"subjects": [samples.person(100 * n + m) for m in range(20)]}) for n in range(10_000)
    )
    answers: list[int] = []
    unlimited = settings.model_copy(update={"rate_per_second": 1e6, "rate_burst": 1_000_000})
    with serving(unlimited, database) as api:

        def post() -> float:
            started = time.monotonic()
            assert api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=person(1)).status_code == 201
            return time.monotonic() - started

        def post_all() -> None:
            answers.append(api.call(Role.COMPLIANCE, "POST", PATH, content=content, timeout=300).status_code)

        idle = sorted(post() for _ in range(20))[10]
        thread = threading.Thread(target=post_all)
        started = time.monotonic()
        thread.start()
        delays = []
        while thread.is_alive():
            delays.append(post())
        seconds = time.monotonic() - started
    assert answers == [200]
    assert max(delays) < max(1.0, seconds / 10), f"idle {idle:.3f} s, longest {max(delays):.3f} s, bulk {seconds:.1f} s"
