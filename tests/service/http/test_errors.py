"""The table of errors: one request for each row that a caller can reach."""

from __future__ import annotations

import sqlite3
import time
import uuid

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, IntegrityError, InternalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.http.errors import TABLE, BodyTooLarge, OperationalError, Row
from service.logs import configure_logging
from service.settings import Settings
from service.store import engines
from service.store import errors as store
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api, serving

UNKNOWN = uuid.UUID("00000000-0000-4000-8000-000000000000")


@pytest.mark.parametrize(
    ("role", "method", "path", "status", "slug"),
    [
        (Role.COMPLIANCE, "GET", f"/api/v1/deletions/{UNKNOWN}", 404, "not-found"),
        (Role.AUDITOR, "GET", f"/api/v1/certificates/{UNKNOWN}", 404, "not-found"),
        (Role.ENGINEER, "GET", f"/api/v1/models/{UNKNOWN}", 404, "not-found"),
        (Role.ENGINEER, "GET", f"/api/v1/models/{UNKNOWN}/artifact", 404, "not-found"),
        (None, "GET", "/no/such/path", 404, "not-found"),
        (Role.COMPLIANCE, "PUT", "/api/v1/deletions", 405, "method-not-allowed"),
        (Role.AUDITOR, "POST", "/healthz", 405, "method-not-allowed"),
        (Role.COMPLIANCE, "GET", "/api/v1/deletions/not-a-uuid", 422, "invalid-request"),
        (None, "POST", "/api/v1/deletions", 401, "token-missing"),
        (None, "GET", f"/api/v1/deletions/{UNKNOWN}", 401, "token-missing"),
        (None, "POST", "/api/v1/models", 401, "token-missing"),
        (Role.AUDITOR, "POST", "/api/v1/deletions", 403, "role-forbidden"),
        (Role.ENGINEER, "GET", f"/api/v1/deletions/{UNKNOWN}", 403, "role-forbidden"),
        (Role.COMPLIANCE, "POST", "/api/v1/models", 403, "role-forbidden"),
    ],
)
def test_each_error_is_a_problem(api: Api, role: Role | None, method: str, path: str, status: int, slug: str) -> None:
    body = {"json": {"subjects": [{"identity_type": "email", "identity_value": "a@example.org"}]}}
    answer = api.call(role, method, path, **(body if method == "POST" else {}))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"urn:lethe:problem:{slug}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/api/v1/deletions", "GET, POST"), (f"/api/v1/deletions/{UNKNOWN}", "DELETE, GET"), ("/v2/requests", "POST")],
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(api: Api, path: str, methods: str) -> None:
    answer = api.call(None, "OPTIONS", path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


def test_a_bad_token_is_refused_with_a_challenge(api: Api) -> None:
    answer = api.call(None, "GET", f"/api/v1/deletions/{UNKNOWN}", headers={"Authorization": "Bearer nonsense"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_revoked_token_is_refused(api: Api, database: object) -> None:
    from service.store.access.tokens import list_tokens, revoke_token
    from service.store.database import Database

    assert isinstance(database, Database)
    with database.writing() as session:
        for token in list_tokens(session):
            revoke_token(session, token.id, actor="test")
    assert api.call(Role.OPERATOR, "GET", f"/api/v1/deletions/{UNKNOWN}").status_code == 401


def test_a_body_with_too_large_a_content_length_is_refused(api: Api, settings: Settings) -> None:
    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", content=b"x" * (settings.max_body_bytes + 1))
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:lethe:problem:too-large")


def test_a_body_that_grows_too_large_is_refused(api: Api, settings: Settings) -> None:
    def chunks() -> object:
        for _ in range(settings.max_body_bytes // 65536 + 1):
            yield b"x" * 65536

    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", content=chunks())
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:lethe:problem:too-large")


@pytest.mark.parametrize(
    ("path", "shape"), [("/api/v1/deletions", "type"), (f"/v2/requests/{UNKNOWN}", "error")], ids=["native", "opendsr"]
)
def test_a_crash_is_reported_in_the_format_of_the_path(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, shape: str
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("broken")

    configure_logging("INFO", sees_identities=True)  # otherwise structlog would print all local variables

    monkeypatch.setattr("service.store.deletions.listing.find_page", crash)
    monkeypatch.setattr("service.store.deletions.opendsr.find_request", crash)
    answer = api.call(Role.COMPLIANCE, "GET", path)
    assert answer.status_code == 500
    assert shape in answer.json()
    assert "broken" not in answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Request-ID"] in answer.text


def test_a_request_waits_for_a_lock_no_longer_than_the_limit(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds what the request needs, and stands still."""
    samples.register_sample(settings, database)
    monkeypatch.setattr(engines, "SQLITE_BUSY_SECONDS", 0.2)
    monkeypatch.setattr(engines, "SERVER_LIMITS", {**engines.SERVER_LIMITS, "lock_timeout": "200ms"})
    body = {"subjects": [samples.person(1)]}
    with serving(settings, database) as api:
        with database.writing() as holder:
            is_postgresql = database.engine.dialect.name == "postgresql"
            holder.execute(text("LOCK TABLE deletions" if is_postgresql else "SELECT 1"))
            started = time.monotonic()
            answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body)
            assert time.monotonic() - started < 5
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:lethe:problem:database-away")
        assert answer.headers["Retry-After"] == "5"
        assert api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body).status_code == 201


def damage() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("error", "status", "slug", "retry_after"),
    [
        (OperationalError("", {}, OSError()), 503, "database-away", "5"),
        (InternalError("", {}, OSError()), 503, "database-away", "5"),
        (PoolTimeout("no connection"), 503, "database-away", "5"),
        (DatabaseError("", {}, damage()), 503, "database-damaged", None),
        (IntegrityError("", {}, ValueError()), 500, "unexpected", None),
    ],
)
def test_errors_of_the_database_are_told_apart_from_bugs(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, slug: str, retry_after: str | None
) -> None:
    def fail(*_: object) -> None:
        raise error

    configure_logging("INFO", sees_identities=True)
    monkeypatch.setattr("service.store.deletions.listing.find_page", fail)
    answer = api.call(Role.COMPLIANCE, "GET", "/api/v1/deletions")
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:lethe:problem:{slug}")
    assert answer.headers.get("Retry-After") == retry_after


def test_malformed_json_is_a_problem(api: Api) -> None:
    answer = api.call(
        Role.COMPLIANCE, "POST", "/api/v1/deletions", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:lethe:problem:invalid-request")


def test_the_table_has_every_store_error_that_a_route_can_raise() -> None:
    internal = {store.StoreError, store.LeaseLost, store.PolicyMissed, store.InvalidLimits}
    store_errors = {
        kind for kind in vars(store).values() if isinstance(kind, type) and issubclass(kind, store.StoreError)
    }
    assert store_errors - internal <= set(TABLE)
    assert {BodyTooLarge, OperationalError} <= set(TABLE)
    assert all(isinstance(row, Row) for row in TABLE.values())
