from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from service.settings import Settings
from service.store.database import Database
from service.store.signing.keys import configured_signer
from service.store.states import Role
from service.store.tables import AuditEntry, Deletion
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_bulk import verified_so_far

PATH = "/api/v1/deletions"


def body(*people: int, **more: object) -> dict[str, object]:
    return {"subjects": [samples.person(number) for number in people], **more}


def test_the_answer_is_201_with_a_receipt_that_verifies(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    request_id = str(uuid.uuid4())
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json=body(3), headers={"X-Request-ID": request_id})
    assert answer.status_code == 201
    deletion = answer.json()
    assert deletion["status"] == "pending"
    assert [model["model_id"] for model in deletion["models"]] == [str(model_id)]
    assert deletion["request_id"] == answer.headers["X-Request-ID"] == request_id
    key = configured_signer(settings).public_pem.encode()
    receipt = verified_so_far(deletion["receipt"].encode(), key)
    assert receipt.predicate["deletion"] == deletion["id"]
    assert receipt.predicate["subjects"] == deletion["subjects"]


def test_a_deletion_is_committed_with_its_audit_entry_before_the_answer(
    api: Api, settings: Settings, database: Database
) -> None:
    samples.register_sample(settings, database)
    deletion = api.call(Role.COMPLIANCE, "POST", PATH, json=body(3)).json()
    with database.reading() as session:
        assert session.get_one(Deletion, uuid.UUID(deletion["id"])).status == "pending"
        entry = session.scalars(select(AuditEntry).where(AuditEntry.concerns == deletion["id"])).one()
        assert entry.action == "deletion.received"
        assert entry.details["subjects"] == deletion["subjects"]


def test_a_deletion_of_an_unknown_subject_completes_at_once(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    deletion = api.call(Role.COMPLIANCE, "POST", PATH, json=body(999)).json()
    assert (deletion["status"], deletion["models"]) == ("completed", [])
    assert "nothing to forget" in deletion["outcome"]


def test_the_same_key_repeats_the_answer_byte_for_byte(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)

    def post(number: int = 3) -> tuple[int, bytes]:
        answer = api.call(Role.COMPLIANCE, "POST", PATH, json=body(number), headers={"Idempotency-Key": "k1"})
        return answer.status_code, answer.content

    with ThreadPoolExecutor(20) as pool:
        answers = set(pool.map(lambda _: post(), range(60)))
    assert len(answers) == 1
    assert answers.pop()[0] == 201
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 1
    status, problem = post(4)
    assert status == 422
    assert b"idempotency-mismatch" in problem


def test_keys_of_two_callers_are_independent(api: Api, settings: Settings, database: Database) -> None:
    from service.store.access.tokens import issue_token

    samples.register_sample(settings, database)
    first = api.call(Role.COMPLIANCE, "POST", PATH, json=body(3), headers={"Idempotency-Key": "k1"}).json()
    with database.writing() as session:
        api.tokens[Role.COMPLIANCE] = issue_token(session, "another", Role.COMPLIANCE, actor="test")
    second = api.call(Role.COMPLIANCE, "POST", PATH, json=body(3), headers={"Idempotency-Key": "k1"}).json()
    assert first["id"] != second["id"]


def test_compliance_sees_only_its_own(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    own = api.call(Role.COMPLIANCE, "POST", PATH, json=body(3)).json()["id"]
    other = str(samples.request_deletion(settings, database, 5).deletion.id)
    assert api.call(Role.COMPLIANCE, "GET", f"{PATH}/{own}").status_code == 200
    assert api.call(Role.COMPLIANCE, "GET", f"{PATH}/{other}").status_code == 404
    for role in (Role.OPERATOR, Role.AUDITOR):
        assert api.call(role, "GET", f"{PATH}/{other}").status_code == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"regulation": "hipaa"}, "body.regulation"),
        ({"subjects": []}, "body.subjects"),
        ({"subjects": [{"identity_type": "email"}]}, "body.subjects.0.identity_value"),
        ({"subjects": [{"identity_type": "E Mail", "identity_value": "x"}]}, "body.subjects.0.identity_type"),
        ({"models": ["not-a-uuid"]}, "body.models.0"),
        ({"modles": []}, "body"),
    ],
)
def test_a_malformed_body_names_the_field_and_stores_nothing(
    api: Api, database: Database, changes: dict[str, object], field: str
) -> None:
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json={**body(1), **changes})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 0


def test_an_unknown_model_is_refused_and_stores_nothing(api: Api, database: Database) -> None:
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json=body(1, models=[str(uuid.uuid4())]))
    assert answer.status_code == 404
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 0


def test_no_answer_or_error_contains_the_identity(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    canary = "canary-5f1c@example.org"
    good = {"subjects": [{"identity_type": "email", "identity_value": canary}]}
    bad: list[object] = [
        {"subjects": [{"identity_type": canary, "identity_value": canary}]},
        {"subjects": canary},
        {**good, canary: canary},
        {**good, "regulation": canary},
        {**good, "models": [canary]},
        [canary],
    ]
    for content in (good, *bad):
        answer = api.call(Role.COMPLIANCE, "POST", PATH, json=content)
        assert canary not in answer.text
    assert canary not in api.call(Role.COMPLIANCE, "POST", PATH, content=canary.encode()).text
    assert canary not in api.call(None, "GET", "/metrics").text
