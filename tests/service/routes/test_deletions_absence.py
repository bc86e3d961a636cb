"""A subject whom no model holds: done at once, with a certificate that says so and can be checked offline."""

from __future__ import annotations

import json

from lethe.verify import verify
from service.settings import Settings
from service.store.database import Database
from service.store.signing.statements import StatementSigner
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/deletions"


def ask(api: Api, number: int) -> dict[str, object]:
    answer = api.call(Role.COMPLIANCE, "POST", PATH, json={"subjects": [samples.person(number)]})
    assert answer.status_code == 201
    found: dict[str, object] = answer.json()
    return found


def test_nobody_s_deletion_is_certified_at_once(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    asked = ask(api, 99)
    assert asked["status"] == "completed"
    bundle = api.call(Role.COMPLIANCE, "GET", str(asked["absence"])).content
    key = StatementSigner(settings.signing_key_bytes()).public_pem.encode()
    found = verify(bundle, key)
    assert found.kind == "certificate of absence"
    assert found.predicate["subjects"] == asked["subjects"]
    assert found.predicate["models_in_store"] == 1
    assert any("none of 1 models" in check for check in found.checks)
    assert "person-99" not in json.dumps(found.predicate)


def test_somebody_s_deletion_has_none(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    asked = ask(api, 1)
    assert asked["absence"] is None
    assert api.call(Role.COMPLIANCE, "GET", f"{PATH}/{asked['id']}/absence").status_code == 404


def test_only_its_own_caller_operators_and_auditors_may_read_it(
    api: Api, settings: Settings, database: Database
) -> None:
    path = str(ask(api, 99)["absence"])
    answers = {role: api.call(role, "GET", path).status_code for role in (*Role, None)}
    assert answers == {
        Role.COMPLIANCE: 200,
        Role.OPERATOR: 200,
        Role.AUDITOR: 200,
        Role.ENGINEER: 403,
        None: 401,
    }
