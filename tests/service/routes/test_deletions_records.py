"""Requests that name rows, instead of or in addition to people."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import delete, func, select

from service.settings import Settings
from service.store.database import Database
from service.store.signing.keys import configured_signer
from service.store.states import Role
from service.store.tables import AuditEntry, Deletion, Record
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_bulk import verified_so_far

PATH = "/api/v1/deletions"


def records_json(model_id: uuid.UUID, *records: int) -> list[dict[str, object]]:
    return [{"model": str(model_id), "record": record} for record in records]


def test_a_row_is_named_in_answer_receipt_and_history(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json={"records": records_json(model_id, 7, 7)})
    assert answer.status_code == 201
    deletion = answer.json()
    assert (deletion["status"], deletion["subjects"], deletion["records"]) == ("pending", [], records_json(model_id, 7))
    assert [model["model_id"] for model in deletion["models"]] == [str(model_id)]
    key = configured_signer(settings).public_pem.encode()
    assert verified_so_far(deletion["receipt"].encode(), key).predicate["records"] == records_json(model_id, 7)
    assert api.call(Role.COMPLIANCE, "GET", f"{PATH}/{deletion['id']}").json()["records"] == records_json(model_id, 7)
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.concerns == deletion["id"])).one()
    assert entry.details == {"subjects": [], "records": records_json(model_id, 7)}


def test_a_row_erased_before_completes_at_once_with_a_certificate(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    with database.writing() as session:
        session.execute(delete(Record).where(Record.record == 7))
    deletion = api.call(Role.COMPLIANCE, "POST", PATH, json={"records": records_json(model_id, 7)}).json()
    assert (deletion["status"], deletion["models"]) == ("completed", [])
    assert "erased by an earlier deletion" in deletion["outcome"]
    key = configured_signer(settings).public_pem.encode()
    absence = verified_so_far(api.call(Role.COMPLIANCE, "GET", deletion["absence"]).content, key)
    assert absence.predicate["records"] == records_json(model_id, 7)


@pytest.mark.parametrize("wrong", ["model", "record", "reach"])
def test_an_unknown_name_is_404_and_stores_nothing(
    api: Api, settings: Settings, database: Database, wrong: str
) -> None:
    model_id, other = (samples.register_sample(settings, database) for _ in range(2))
    body = {
        "model": {"records": records_json(uuid.uuid4(), 0)},
        "record": {"records": records_json(model_id, 39, 40)},
        "reach": {"records": records_json(model_id, 0), "subjects": [samples.person(1)], "models": [str(other)]},
    }[wrong]
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json=body)
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("records.1 " if wrong == "record" else "records.0 ")
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 0


def test_a_request_must_name_subjects_or_records(api: Api) -> None:
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json={"regulation": "gdpr"})
    assert answer.status_code == 422
    assert "subjects, records, or both" in answer.json()["errors"][0]["message"]
