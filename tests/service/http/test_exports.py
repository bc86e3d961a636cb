from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from service.http import exports as exports_module
from service.http.errors import TokenMissing
from service.http.exports import while_valid
from service.store.access.tokens import Caller, issue_token, list_tokens, revoke_token
from service.store.database import Database
from service.store.states import Role
from service.store.tables import AuditEntry
from tests.service.conftest import Api

MODEL = str(uuid.UUID(int=7))
CSV = {"Accept": "text/csv"}


def exports(database: Database) -> list[tuple[str, str, dict[str, Any]]]:
    query = select(AuditEntry).where(AuditEntry.action == "export.made").order_by(AuditEntry.id)
    with database.reading() as session:
        return [(entry.actor, entry.concerns, entry.details) for entry in session.scalars(query)]


def test_every_export_of_bounds_is_recorded_with_its_filters(api: Api, database: Database) -> None:
    path = "/api/v1/audit/bounds"
    assert api.call(Role.AUDITOR, "GET", path).status_code == 200  # a page is not an export
    assert api.call(Role.AUDITOR, "GET", path, headers=CSV).status_code == 200
    filters = {"model": MODEL, "level": "proved", "issued_from": "2026-01-01T00:00:00+01:00", "epsilon_above": 0}
    assert api.call(Role.OPERATOR, "GET", path, headers=CSV, params=filters).status_code == 200
    recorded = {"model_id": MODEL, "level": "proved", "issued_from": "2025-12-31T23:00:00Z", "epsilon_above": 0.0}
    assert exports(database) == [
        ("acme-auditor", "bounds", {"filters": {}}),
        ("acme-operator", "bounds", {"filters": recorded}),
    ]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_export_of_deletions_is_recorded_with_its_filters(api: Api, database: Database) -> None:
    path = "/api/v1/deletions.csv"
    assert api.call(Role.AUDITOR, "GET", path).status_code == 200
    filters = {"status": ["pending", "failed"], "overdue": False, "regulation": "ccpa"}
    assert api.call(Role.COMPLIANCE, "GET", path, params=filters).status_code == 200
    assert api.call(Role.ENGINEER, "GET", path).status_code == 403
    recorded = {"caller": "acme-compliance", "statuses": ["pending", "failed"], "overdue": False, "regulation": "ccpa"}
    assert exports(database) == [
        ("acme-auditor", "deletions", {"filters": {}}),
        ("acme-compliance", "deletions", {"filters": recorded}),
    ]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_export_ends_with_its_token(database: Database) -> None:
    with database.writing() as session:
        issue_token(session, "acme", Role.AUDITOR, "test")
        (token,) = list_tokens(session)
    pages = while_valid(database, Caller("acme", Role.AUDITOR, token.id), iter(["first", "second"]))
    assert next(pages) == "first"
    with database.writing() as session:
        revoke_token(session, token.id, "test")
    with pytest.raises(TokenMissing, match="incomplete"):
        next(pages)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("path", ["/api/v1/deletions.csv", "/api/v1/audit/bounds"])
def test_a_client_notices_that_its_export_was_ended(
    api: Api, database: Database, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports_module, "is_active", lambda session, token_id: False)
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        api.call(Role.AUDITOR, "GET", path, headers=CSV)
