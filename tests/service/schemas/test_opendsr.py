from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from service.schemas.opendsr import EXAMPLE, SUPPORTED_FORMAT, SUPPORTED_REQUEST, OpenDsrRequest, request_body


def test_the_example_is_a_valid_request() -> None:
    request = OpenDsrRequest.model_validate_json(json.dumps(EXAMPLE))
    assert request.subject_request_type == SUPPORTED_REQUEST


def test_unknown_fields_are_ignored() -> None:
    OpenDsrRequest.model_validate({**EXAMPLE, "property_id": "123456"})


@pytest.mark.parametrize(
    "identifier",
    [
        "001d7da8-e2cd-11f1-b4c3-02fc00000001",  # of version 1
        "B8D0F9FE-78E8-4E84-811F-899F330FF049",
        "{31a16816-57f5-4a0c-a39a-c99dd9363b5b}",
    ],
)
def test_request_ids_have_one_spelling(identifier: str) -> None:
    with pytest.raises(ValidationError, match="UUID of version 4"):
        OpenDsrRequest.model_validate({**EXAMPLE, "subject_request_id": identifier})


def test_the_document_offers_only_what_is_supported() -> None:
    schema = request_body()["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["subject_request_type"]["enum"] == [SUPPORTED_REQUEST]
    identity = schema["properties"]["subject_identities"]["items"]
    assert identity["properties"]["identity_format"]["enum"] == [SUPPORTED_FORMAT]
    assert "subject_identities" in schema["required"]
