from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pydantic import ValidationError

from service.http.opendsr_errors import UnsupportedRequest
from service.intake.opendsr import native_body, read_opendsr

DOMAIN = "lethe.example"
IDENTITY = {"identity_type": "email", "identity_value": "ada@example.org", "identity_format": "raw"}


def body(**changes: Any) -> bytes:
    request = {
        "regulation": "ccpa",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-15T15:00:00Z",
        "subject_identities": [IDENTITY],
        **changes,
    }
    return json.dumps(request).encode()


def test_a_request_has_the_same_meaning_in_the_native_form() -> None:
    urls = [f"https://platform.example/{number}" for number in range(10)]
    native = native_body(read_opendsr(body(status_callback_urls=urls), DOMAIN))
    assert native.regulation == "ccpa"
    assert [subject.model_dump() for subject in native.subjects] == [
        {"identity_type": "email", "identity_value": "ada@example.org"}
    ]
    assert native.callback_urls == urls
    assert (native.records, native.models) == ([], None)


def test_identities_may_be_in_the_extensions_of_our_domain() -> None:
    raw = body(subject_identities=None, extensions={DOMAIN: {"subject_identities": [IDENTITY]}})
    assert len(native_body(read_opendsr(raw, DOMAIN)).subjects) == 1
    with pytest.raises(UnsupportedRequest) as refused:
        read_opendsr(raw, "other.example")
    assert refused.value.reason == "no_identity"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"subject_request_type": "access"}, "unsupported_request_type"),
        ({"subject_identities": [{**IDENTITY, "identity_format": "md5"}]}, "unsupported_identity_format"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedRequest) as refused:
        read_opendsr(body(**changes), DOMAIN)
    assert refused.value.reason == reason
    assert "ada" not in str(refused.value)


def test_what_breaks_the_specification_is_invalid() -> None:
    with pytest.raises(ValidationError):
        read_opendsr(body(subject_identities=[]), DOMAIN)
