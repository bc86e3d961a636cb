from __future__ import annotations

import base64
import json

import jsonschema

from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from vocabulary.certificate_schema import SCHEMA_FILE

PATH = "/api/v1/schemas/certificate"


def test_the_schema_is_public_and_cacheable(api: Api) -> None:
    response = api.call(None, "GET", PATH)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/schema+json"
    assert "public" in response.headers["cache-control"]
    assert response.content == SCHEMA_FILE.read_bytes()


def test_the_receipt_of_a_request_fits_the_served_schema(api: Api) -> None:
    schema = api.call(None, "GET", PATH).json()
    request = {"subjects": [samples.person(1)]}
    receipt = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=request).json()["receipt"]
    validator = jsonschema.Draft202012Validator(schema)
    bundle = json.loads(receipt)
    validator.validate(bundle)
    assert not validator.is_valid({**bundle, "more": 1})
    statement = {**schema, "$ref": "#/$defs/Statement"}
    payload = json.loads(base64.b64decode(bundle["envelope"]["payload"]))
    jsonschema.Draft202012Validator(statement).validate(payload)
    del payload["predicate"]["log"]
    assert not jsonschema.Draft202012Validator(statement).is_valid(payload)
