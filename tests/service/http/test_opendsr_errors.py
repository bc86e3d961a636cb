from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.http.errors import BodyTooLarge, RoleForbidden, TokenMissing, TooManyRequests
from service.http.opendsr_errors import ERRORS, RESPONSES, UnsupportedRequest, render_error
from service.store.errors import IdempotencyMismatch, NotCancellable, NotFound

DOMAIN = "lethe.example"


def render(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    response = render_error(error, DOMAIN)
    return response.status_code, json.loads(response.body)["error"], dict(response.headers)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (UnsupportedRequest("no_identity", "send one"), 400, "no_identity"),
        (IdempotencyMismatch("another body"), 400, "conflicting_request"),
        (NotCancellable("running"), 400, "not_pending"),
        (TokenMissing("no token"), 401, "unauthorized"),
        (RoleForbidden("no role"), 403, "forbidden"),
        (NotFound("no request"), 404, "not_found"),
        (BodyTooLarge(10), 413, "too_large"),
        (TooManyRequests(7), 429, "too_many_requests"),
        (OperationalError("SELECT 1", {}, OSError("person-1")), 503, "unavailable"),
        (InternalError("SELECT 1", {}, OSError("person-1")), 503, "unavailable"),
        (PoolTimeout("person-1"), 503, "unavailable"),
        (HTTPException(405, "no"), 405, "method_not_allowed"),
    ],
)
def test_each_error_has_its_status_and_reason(error: Exception, status: int, reason: str) -> None:
    code, body, _ = render(error)
    assert (code, body["code"]) == (status, status)
    assert [(item["reason"], item["domain"]) for item in body["errors"]] == [(reason, DOMAIN)]
    assert "person-1" not in str(body)


def test_each_invalid_field_is_named_without_its_value() -> None:
    class Body(BaseModel):
        count: int
        name: str

    with pytest.raises(ValidationError) as invalid:
        Body.model_validate({"count": "person-1"})
    status, body, _ = render(invalid.value)
    assert status == 400
    assert [item["message"].partition(":")[0] for item in body["errors"]] == ["count", "name"]
    assert "person-1" not in str(body)


def test_headers_tell_when_and_how_to_retry() -> None:
    headers = {
        "retry-after": [render(TooManyRequests(7))[2], render(OperationalError("", {}, OSError()))[2]],
        "www-authenticate": [render(TokenMissing("no token"))[2]],
        "allow": [render(HTTPException(405, "no", {"Allow": "GET"}))[2]],
    }
    values = {name: [answer[name] for answer in answers] for name, answers in headers.items()}
    assert values == {"retry-after": ["7", "5"], "www-authenticate": ["Bearer"], "allow": ["GET"]}


def test_the_document_describes_every_status() -> None:
    assert {status for status, _ in ERRORS.values()} == set(RESPONSES)
