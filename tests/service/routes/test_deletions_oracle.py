"""Asking and cancelling is no oracle: until a deletion is binding, its caller sees the same for everybody."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.clock import current_time
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Deletion, PendingAbsence
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/deletions"
HELD, ABSENT = 3, 999
CHANGING = re.compile(
    r'[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}|[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:.]+Z?|"id":\d+|"payload":"[^"]+"|"sig":"[^"]+"'
)
"""Ids, commitments, times and signatures, which differ between any two requests."""


def shape(answer: Any) -> tuple[int, str]:
    """Return the answer without what differs between any two requests."""
    text = json.dumps(answer.json()) if "json" in answer.headers["content-type"] else answer.text
    return answer.status_code, CHANGING.sub("*", text.replace(r"\"", '"').replace('": ', '":'))


def ask(api: Api, person: int, **members: object) -> Any:
    return api.call(Role.COMPLIANCE, "POST", PATH, json={"subjects": [samples.person(person)], **members})


def observe(api: Api, deletion_id: str, model_id: uuid.UUID) -> list[tuple[int, str]]:
    """Return all that a caller can see of a deletion."""
    paths = [
        f"{PATH}/{deletion_id}",
        f"{PATH}/{deletion_id}/events",
        f"{PATH}/{deletion_id}/absence",
        PATH,
        f"{PATH}?model={model_id}",
        f"{PATH}?model={model_id}&status=pending&status=cancelled",
        f"{PATH}?status=pending",
        f"{PATH}?status=completed",
        f"{PATH}.csv",
        f"{PATH}.csv?model={model_id}",
        "/metrics",
    ]
    answers = [shape(api.call(Role.COMPLIANCE, "GET", path)) for path in paths]
    answers[-1] = (answers[-1][0], re.search(r"lethe_deletions.*", answers[-1][1])[0])  # type: ignore[index]
    retried = api.call(Role.COMPLIANCE, "POST", f"{PATH}/{deletion_id}/retry")
    return [*answers, shape(retried)]


def make_binding(database: Database) -> None:
    with database.writing() as session:
        past = current_time(session) - timedelta(seconds=1)
        session.execute(update(Deletion).where(Deletion.binding_at.is_not(None)).values(binding_at=past))
        session.execute(update(PendingAbsence).values(binding_at=past))


@pytest.mark.parametrize("members", [{}, {"models": True}, {"callback_urls": ["https://one.example/"]}])
def test_until_it_is_binding_everything_looks_the_same(
    patient_api: Api, settings: Settings, database: Database, members: dict[str, Any]
) -> None:
    api, model_id = patient_api, samples.register_sample(settings, database)
    if "models" in members:
        members = {"models": [str(model_id)]}
    seen = []
    for person in (HELD, ABSENT):
        created = ask(api, person, **members)
        assert created.status_code == 201
        deletion_id = created.json()["id"]
        before = observe(api, deletion_id, model_id)
        cancelled = api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{deletion_id}")
        assert cancelled.json()["status"] == "cancelled"
        make_binding(database)  # its window passes: that changes nothing for a cancelled deletion
        after = observe(api, deletion_id, model_id)
        again = api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{deletion_id}")
        seen.append([shape(created), *before, shape(cancelled), *after, shape(again)])
        with database.writing() as session:
            session.execute(update(Deletion).values(caller="another"))  # out of the second one's lists
    assert seen[0] == seen[1]
    assert len(seen[0]) == 27


def test_bulk_and_opendsr_look_the_same(patient_api: Api, settings: Settings, database: Database) -> None:
    api = patient_api
    samples.register_sample(settings, database)
    seen = []
    for person in (HELD, ABSENT):
        line = json.dumps({"subjects": [samples.person(person)]})
        bulk = api.call(Role.COMPLIANCE, "POST", f"{PATH}/bulk", content=line)
        request_id = str(uuid.uuid4())
        body = {
            "regulation": "gdpr",
            "subject_request_id": request_id,
            "subject_request_type": "erasure",
            "submitted_time": "2026-11-15T15:00:00Z",
            "subject_identities": [{**samples.person(person), "identity_format": "raw"}],
        }
        opendsr = api.call(Role.COMPLIANCE, "POST", "/v2/requests", json=body)
        accepted = {**opendsr.json(), "encoded_request": ""}
        path = f"/v2/requests/{request_id}"
        answers = [api.call(Role.COMPLIANCE, method, path) for method in ("GET", "DELETE", "GET", "DELETE")]
        seen.append([shape(bulk), sorted(accepted), *map(shape, answers)])
        assert [answer.status_code for answer in answers] == [200, 202, 200, 400]
    assert seen[0] == seen[1]


def test_a_repeated_key_answers_alike(patient_api: Api, settings: Settings, database: Database) -> None:
    """Before and after a cancellation, with the same body and with another."""
    api = patient_api
    samples.register_sample(settings, database)
    for key in ("weak", str(uuid.uuid4())):
        seen = []
        for person in (HELD, ABSENT):
            headers = {"Idempotency-Key": f"{key}{person}" if key == "weak" else str(uuid.uuid4())}
            bodies = [{"subjects": [samples.person(number)]} for number in (person, 7, 998)]

            def post(body: dict[str, Any], headers: dict[str, str] = headers) -> Any:
                return api.call(Role.COMPLIANCE, "POST", PATH, headers, json=body)

            answers = [post(body) for body in (bodies[0], *bodies)]
            api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{answers[0].json()['id']}")
            answers += [post(body) for body in bodies]
            seen.append([shape(answer) for answer in answers])
            assert answers[0].content == answers[1].content
        assert seen[0] == seen[1]


def test_once_binding_the_caller_sees_its_models_and_operators_always_do(
    patient_api: Api, settings: Settings, database: Database
) -> None:
    api, model_id = patient_api, samples.register_sample(settings, database)
    held, absent = (ask(api, person).json()["id"] for person in (HELD, ABSENT))

    def read(role: Role, deletion_id: str) -> dict[str, Any]:
        deletion: dict[str, Any] = api.call(role, "GET", f"{PATH}/{deletion_id}").json()
        return deletion

    assert [model["model_id"] for model in read(Role.OPERATOR, held)["models"]] == [str(model_id)]
    assert "nothing to forget" in read(Role.AUDITOR, absent)["outcome"]
    make_binding(database)
    assert [model["model_id"] for model in read(Role.COMPLIANCE, held)["models"]] == [str(model_id)]
    assert "nothing to forget" in read(Role.COMPLIANCE, absent)["outcome"]
    listed = api.call(Role.COMPLIANCE, "GET", f"{PATH}?model={model_id}").json()["items"]
    assert [item["id"] for item in listed] == [held]
