"""Deletions of subjects that no model holds: complete at once, with a certificate that verifies offline."""

from __future__ import annotations

import json

from service.settings import Settings
from service.store.database import Database
from service.store.signing.keys import configured_signer
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_bulk import verified_so_far

PATH = "/api/v1/deletions"


def request_deletion(api: Api, number: int) -> dict[str, object]:
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json={"subjects": [samples.person(number)]})
    assert answer.status_code == 201
    deletion: dict[str, object] = answer.json()
    return deletion


def test_a_deletion_of_an_unknown_subject_is_certified_at_once(
    api: Api, settings: Settings, database: Database
) -> None:
    samples.register_sample(settings, database)
    deletion = request_deletion(api, 99)
    assert deletion["status"] == "completed"
    bundle = api.call(Role.COMPLIANCE, "GET", str(deletion["absence"])).content
    key = configured_signer(settings).public_pem.encode()
    absence = verified_so_far(bundle, key)
    assert absence.kind == "certificate of absence"
    assert absence.predicate["subjects"] == deletion["subjects"]
    assert absence.predicate["models_in_store"] == 1
    assert any("none of 1 models" in check for check in absence.checks)
    assert "person-99" not in json.dumps(absence.predicate)


def test_a_deletion_of_a_held_subject_has_no_such_certificate(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    deletion = request_deletion(api, 1)
    assert deletion["absence"] is None
    assert api.call(Role.COMPLIANCE, "GET", f"{PATH}/{deletion['id']}/absence").status_code == 404


def test_only_its_own_caller_operators_and_auditors_may_read_it(
    api: Api, settings: Settings, database: Database
) -> None:
    path = str(request_deletion(api, 99)["absence"])
    answers = {role: api.call(role, "GET", path).status_code for role in (*Role, None)}
    assert answers == {
        Role.COMPLIANCE: 200,
        Role.OPERATOR: 200,
        Role.AUDITOR: 200,
        Role.ENGINEER: 403,
        None: 401,
    }
