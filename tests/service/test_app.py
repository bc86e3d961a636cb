from __future__ import annotations

import pytest

from tests.service.conftest import Api

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/healthz", "GET, HEAD"), ("/api/v1/deletions", "GET, POST"), ("/api/v1/models/0/artifact", "GET, HEAD")],
)
def test_a_wrong_method_names_those_allowed(api: Api, path: str, methods: str) -> None:
    answer = api.call(None, "PUT", path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


@pytest.mark.parametrize(
    ("path", "shape"), [("/api/v1/nothing", "type"), ("/v2/nothing", "error"), ("/v1/nothing", "error")]
)
def test_errors_have_the_format_of_their_path(api: Api, path: str, shape: str) -> None:
    answer = api.call(None, "GET", path)
    assert answer.status_code == 404
    assert shape in answer.json()


def test_a_trailing_slash_is_not_redirected(api: Api) -> None:
    assert api.call(None, "GET", "/api/v1/deletions/ada@example.org/").status_code == 404


def test_operation_ids_are_unique(api: Api) -> None:
    paths = api.call(None, "GET", "/openapi.json").json()["paths"]
    ids = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(ids) == len(set(ids))
