"""Permissions of each role, and of callers without a token, at each route: a table written by hand."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import httpx
import pytest
from starlette.routing import BaseRoute, Mount

from service.app import create_app
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests.service.conftest import Api, serving

# Roles are the same on every database.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
C, O, A, E = Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR, Role.ENGINEER  # noqa: E741
UNKNOWN = "00000000-0000-4000-8000-000000000000"
ANYBODY = None

TABLE: dict[tuple[str, str], set[Role] | None] = {
    ("POST", "/api/v1/deletions"): {C},
    ("POST", "/api/v1/deletions/bulk"): {C},
    ("GET", "/api/v1/deletions"): {C, O, A},
    ("GET", "/api/v1/deletions.csv"): {C, O, A},
    ("POST", "/api/v1/deletions/retry"): {O},
    ("GET", "/api/v1/deletions/{deletion_id}"): {C, O, A},
    ("DELETE", "/api/v1/deletions/{deletion_id}"): {C, O},
    ("GET", "/api/v1/deletions/{deletion_id}/absence"): {C, O, A},
    ("GET", "/api/v1/deletions/{deletion_id}/absence.{form}"): {C, O, A},
    ("GET", "/api/v1/deletions/{deletion_id}/receipt"): {C, O, A},
    ("GET", "/api/v1/deletions/{deletion_id}/receipt.{form}"): {C, O, A},
    ("GET", "/api/v1/deletions/{deletion_id}/events"): {C, O, A},
    ("POST", "/api/v1/deletions/{deletion_id}/retry"): {C, O},
    ("POST", "/api/v1/deletions/{deletion_id}/extension"): {O},
    ("GET", "/api/v1/certificates/{certificate_id}"): {C, O, A},
    ("GET", "/api/v1/certificates/{certificate_id}.{form}"): {C, O, A},
    ("POST", "/api/v1/certificates/{certificate_id}/reissue"): {O},
    ("POST", "/api/v1/deletions/{deletion_id}/absence/reissue"): {O},
    ("GET", "/api/v1/log/keys"): ANYBODY,
    ("GET", "/api/v1/log/checkpoint"): ANYBODY,
    ("GET", "/api/v1/log/proof/inclusion"): ANYBODY,
    ("GET", "/api/v1/log/proof/consistency"): ANYBODY,
    ("GET", "/api/v1/log/entries"): {O, A},
    ("GET", "/api/v1/log/tile/{level}/{number}"): {O, A},
    ("GET", "/api/v1/models"): {O, A, E},
    ("POST", "/api/v1/models"): {E},
    ("POST", "/api/v1/models/import"): {E},
    ("GET", "/api/v1/models/{model_id}"): {O, A, E},
    ("GET", "/api/v1/models/{model_id}/versions"): {O, A, E},
    ("PUT", "/api/v1/models/{model_id}/policy"): {O, E},
    ("POST", "/api/v1/models/{model_id}/refresh"): {O},
    ("GET", "/api/v1/models/{model_id}/artifact"): {E},
    ("HEAD", "/api/v1/models/{model_id}/artifact"): {E},
    ("GET", "/api/v1/models/{model_id}/draws"): {E},
    ("GET", "/api/v1/jobs"): {O, A},
    ("GET", "/api/v1/jobs/{job_id}"): {O, A},
    ("GET", "/api/v1/callbacks"): {O, A},
    ("POST", "/api/v1/callbacks/{callback_id}/resend"): {O},
    ("GET", "/api/v1/audit/bounds"): {O, A},
    ("GET", "/api/v1/audit/models"): {O, A},
    ("GET", "/api/v1/audit/summaries"): {O, A},
    ("GET", "/api/v1/schemas/certificate"): ANYBODY,
    ("GET", "/"): ANYBODY,
    ("GET", "/healthz"): ANYBODY,
    ("HEAD", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("HEAD", "/readyz"): ANYBODY,
    ("GET", "/metrics"): ANYBODY,
    ("GET", "/v2/discovery"): ANYBODY,
    ("GET", "/v1/discovery"): ANYBODY,
    ("GET", "/v2/certificate.pem"): ANYBODY,
    ("POST", "/v2/requests"): {C},
    ("GET", "/v2/requests/{subject_request_id}"): {C},
    ("GET", "/v2/status/{subject_request_id}"): {C},
    ("DELETE", "/v2/requests/{subject_request_id}"): {C},
    ("POST", "/v1/opengdpr_requests"): {C},
    ("GET", "/v1/opengdpr_requests/{subject_request_id}"): {C},
    ("DELETE", "/v1/opengdpr_requests/{subject_request_id}"): {C},
    ("GET", "/openapi.json"): ANYBODY,
    ("HEAD", "/openapi.json"): ANYBODY,
    ("GET", "/docs"): ANYBODY,
    ("GET", "/docs/oauth2-redirect"): ANYBODY,
    ("GET", "/redoc"): ANYBODY,
}


def served_routes(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        included = getattr(route, "original_router", None)  # newer FastAPI keeps included routers as a whole
        if included is not None:
            yield from served_routes(included.routes)
        elif not isinstance(route, Mount):  # scripts and styles of the pages
            yield from ((method, route.path) for method in route.methods)  # type: ignore[attr-defined]


def test_the_table_has_each_route_of_the_app_and_no_other(settings: Settings) -> None:
    assert set(served_routes(create_app(settings).routes)) == set(TABLE)


def test_each_route_admits_its_roles(api: Api) -> None:
    verdicts = {(route, role): verdict(call(api, role, *route)) for route in TABLE for role in (*Role, None)}
    expected = {
        (route, role): "in" if allowed is ANYBODY or role in allowed else "unknown" if role is None else "refused"
        for route, allowed in TABLE.items()
        for role in (*Role, None)
    }
    assert verdicts == expected


def test_a_private_log_admits_auditors_and_operators_and_its_keys_all_roles(
    settings: Settings, database: Database
) -> None:
    log = [route for route, allowed in TABLE.items() if route[1].startswith("/api/v1/log/") and allowed is ANYBODY]
    assert len(log) == 4
    with serving(settings.model_copy(update={"public_log": False}), database) as api:
        for route in log:
            admitted = {role for role in (*Role, None) if verdict(call(api, role, *route)) == "in"}
            assert admitted == (set(Role) if route[1].endswith("/keys") else {O, A})
            assert verdict(call(api, None, *route)) == "unknown"


def call(api: Api, role: Role | None, method: str, path: str) -> httpx.Response:
    names = ("deletion_id", "certificate_id", "model_id", "job_id", "callback_id", "subject_request_id")
    for name in names:
        path = path.replace(f"{{{name}}}", UNKNOWN)
    path = path.replace("{level}/{number}", "0/0").replace("{form}", "json")
    return api.call(role, method, path, json={}) if method in ("POST", "PUT") else api.call(role, method, path)


def verdict(answer: httpx.Response) -> str:
    """Return "in" if the role is admitted, "refused" if not, "unknown" without a valid token."""
    assert answer.status_code < 500
    if answer.status_code == 401:
        return "unknown"
    if answer.status_code != 403 or "imports-off" in answer.text:
        return "in"
    is_role_error = "role-forbidden" in answer.text or '"reason":"forbidden"' in answer.text
    assert is_role_error or answer.request.method == "HEAD", answer.text
    return "refused"


def test_an_unknown_token_counts_as_no_token(api: Api) -> None:
    stranger = Api(api.url, dict.fromkeys(Role, str(uuid.uuid4())))
    guarded = [route for route, allowed in TABLE.items() if allowed is not ANYBODY]
    assert {verdict(call(stranger, Role.OPERATOR, *route)) for route in guarded} == {"unknown"}
