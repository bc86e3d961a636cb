from __future__ import annotations

import pytest

from service.store.states import Role
from tests.service.conftest import Api


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/deletions/retry?regulaton=gdpr"),
        ("POST", "/api/v1/deletions/retry?ada@example.org"),
        ("GET", "/api/v1/jobs?modle=0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f"),
        ("GET", "/api/v1/callbacks?Status=dead"),
        ("GET", "/api/v1/audit/bounds?epsilon=1"),
        ("GET", "/api/v1/models?name=ada@example.org"),
        ("GET", "/api/v1/log/entries?end=5"),
    ],
)
def test_unknown_parameters_are_refused_and_not_repeated(api: Api, method: str, path: str) -> None:
    answer = api.call(Role.OPERATOR, method, path)
    assert answer.status_code == 422
    assert "unknown parameter" in answer.json()["errors"][0]["message"]
    assert "ada@example.org" not in answer.text


def test_a_repeated_value_is_refused_unless_the_parameter_is_a_list(api: Api) -> None:
    twice = api.call(Role.OPERATOR, "POST", "/api/v1/deletions/retry?regulation=gdpr&regulation=ccpa")
    assert twice.json()["errors"] == [{"field": "query.regulation", "message": "given more than once; send one value"}]
    for path in ("/api/v1/deletions?status=failed&status=pending", "/api/v1/callbacks?status=dead&status=pending"):
        assert api.call(Role.OPERATOR, "GET", path).status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "deletions?overdue=yes",
        "deletions?overdue=1",
        "deletions?overdue=True",
        "deletions?limit=%207",
        "deletions?limit=007",
        "deletions?limit=1_0",
        "deletions?limit=1.0",
        "deletions?limit=1e2",
        "deletions?limit=%2B7",
        "deletions?limit=%D9%A7",
        "deletions?model=0F6C0C4E-6F0C-4C9F-8A35-0C9F8A350C9F",
        "deletions?model=0f6c0c4e6f0c4c9f8a350c9f8a350c9f",
        "deletions?model=urn:uuid:0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f",
        "deletions?received_from=1900000000",
        "deletions?received_from=2030-03-31",
        "deletions?regulation=GDPR",
        "deletions?status=Pending",
        "jobs?model={0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f}",
        "models?limit=%207",
        "audit/bounds?epsilon_above=1_0",
        "audit/bounds?epsilon_above=nan",
        "audit/summaries?limit=+7",
        "log/entries?start=00",
    ],
)
def test_a_value_has_one_spelling(api: Api, query: str) -> None:
    assert api.call(Role.OPERATOR, "GET", f"/api/v1/{query}").status_code == 422


def test_the_usual_spelling_is_accepted(api: Api) -> None:
    for query in (
        "deletions?overdue=false&limit=7&model=0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f&received_from=2030-03-31T00:00:00Z",
        "audit/bounds?epsilon_above=1e-2&limit=7",
        "log/entries?start=0&count=10",
    ):
        assert api.call(Role.OPERATOR, "GET", f"/api/v1/{query}").status_code == 200
