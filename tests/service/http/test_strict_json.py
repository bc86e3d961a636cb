from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.http.strict_json import DUPLICATE_KEY, NOT_FINITE, read_json
from service.store.states import Role
from tests.service.conftest import Api

PERSON = '{"identity_type": "email", "identity_value": "ada@example.org"}'
PATHS = ["/api/v1/deletions", "/api/v1/deletions/bulk", "/v2/requests"]


def test_a_json_text_is_read() -> None:
    assert read_json(' {"a": [1, 1.5, "ä", null], "b": {"a": true}}\r\n'.encode()) == {
        "a": [1, 1.5, "ä", None],
        "b": {"a": True},
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": 1, "a": 1}', DUPLICATE_KEY),
        (b'[{"a": {"b": 1, "\\u0062": 2}}]', DUPLICATE_KEY),
        (b'{"a": NaN}', NOT_FINITE),
        (b"[-Infinity]", NOT_FINITE),
        (b"{} x", "not valid JSON at character 4"),
        (b"{}{}", "not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON at character 1"),
        ('{"a": 1}'.encode("utf-16"), "not valid UTF-8"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b"{'a': 1}", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"[01]", "not valid JSON"),
        (b"[1_0]", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "too many digits"),
        (b"", "not valid JSON"),
    ],
)
def test_what_readers_could_understand_differently_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        read_json(content)
    (error,) = refusal.value.errors()
    assert reason in error["msg"]


@pytest.mark.parametrize(
    "body",
    [
        f'{{"subjects": [{PERSON}], "models": null, "models": null}}',
        '{"subjects": [{"identity_type": "email", "identity_value": "ada@example.org", "identity_value": "bob"}]}',
        f'{{"subjects": [{PERSON}]}} trailing',
        f'\ufeff{{"subjects": [{PERSON}]}}',
    ],
)
def test_a_body_is_refused_everywhere_and_not_repeated(api: Api, body: str) -> None:
    statuses = []
    for path in PATHS:
        headers = {"Content-Type": "application/json"}
        answer = api.call(Role.COMPLIANCE, "POST", path, headers, content=body.encode())
        assert "ada@example.org" not in answer.text
        statuses.append(answer.json()["status"] if "bulk" in path else answer.status_code)
    assert statuses == [422, 422, 400]
    assert api.call(Role.OPERATOR, "GET", "/api/v1/deletions").json()["items"] == []


def test_the_answer_names_the_reason(api: Api) -> None:
    body = f'{{"subjects": [{PERSON}], "subjects": [{PERSON}]}}'
    headers = {"Content-Type": "application/json"}
    native = api.call(Role.COMPLIANCE, "POST", PATHS[0], headers, content=body)
    assert native.json()["errors"] == [{"field": "body", "message": DUPLICATE_KEY}]
    opendsr = api.call(Role.COMPLIANCE, "POST", PATHS[2], headers, content=body)
    assert opendsr.json()["error"]["errors"][0]["message"] == DUPLICATE_KEY
