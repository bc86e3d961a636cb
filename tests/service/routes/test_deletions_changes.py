"""Cancel, retry and extend over HTTP: effects, roles and refusals."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.deletions import deadlines
from service.store.states import Role
from service.store.tables import AuditEntry, Batch, Deletion, DeletionTarget, now
from tests import samples
from tests.service.conftest import Api
from tests.service.deletion_rows import add_rows

PATH = "/api/v1/deletions"
TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)
UNKNOWN = uuid.UUID("00000000-0000-4000-8000-000000000000")


def request_deletion(api: Api, person: int = 3) -> str:
    deletion_id: str = api.call(Role.COMPLIANCE, "POST", PATH, json={"subjects": [samples.person(person)]}).json()["id"]
    return deletion_id


def claim(database: Database, model_id: uuid.UUID) -> Claim | None:
    with database.writing() as session:
        return claim_batch(session, model_id, "worker", TERMS)


def fail(database: Database, model_id: uuid.UUID, reason: str = "disk full") -> None:
    claimed = claim(database, model_id)
    assert claimed is not None
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, reason, permanent=True, max_attempts=3, splits=False)


def entry(database: Database, deletion_id: str, action: str) -> AuditEntry:
    with database.reading() as session:
        return session.scalars(
            select(AuditEntry).where(AuditEntry.concerns == deletion_id, AuditEntry.action == action)
        ).one()


def slug(answer: Any) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:lethe:problem:")


def test_a_cancelled_deletion_is_never_claimed(patient_api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(patient_api)
    answer = patient_api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{deletion_id}")
    assert answer.status_code == 200
    deletion = answer.json()
    assert (deletion["status"], deletion["binding_at"], deletion["days_left"]) == ("cancelled", None, None)
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now()))
    assert claim(database, model_id) is None
    assert entry(database, deletion_id, "deletion.cancelled").actor == "acme-compliance"
    assert slug(patient_api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{deletion_id}")) == (409, "not-cancellable")


def test_a_binding_deletion_can_be_cancelled_by_an_operator_only(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    refused = api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{deletion_id}")
    assert slug(refused) == (409, "not-cancellable")
    assert "binding" in refused.json()["detail"]
    cancelled = api.call(Role.OPERATOR, "DELETE", f"{PATH}/{deletion_id}").json()
    assert (cancelled["status"], cancelled["models"][0]["status"]) == ("cancelled", "cancelled")
    assert claim(database, model_id) is None


def test_a_running_or_finished_deletion_cannot_be_cancelled(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    running, completed = request_deletion(api), request_deletion(api, person=999)
    claimed = claim(database, model_id)
    assert claimed is not None
    for deletion_id, status in ((running, "running"), (completed, "completed")):
        assert slug(api.call(Role.OPERATOR, "DELETE", f"{PATH}/{deletion_id}")) == (409, "not-cancellable")
        assert api.call(Role.OPERATOR, "GET", f"{PATH}/{deletion_id}").json()["status"] == status
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "disk full", permanent=True, max_attempts=3)
    assert slug(api.call(Role.COMPLIANCE, "DELETE", f"{PATH}/{running}")) == (409, "not-cancellable")
    assert api.call(Role.OPERATOR, "DELETE", f"{PATH}/{running}").json()["status"] == "cancelled"


def test_a_failed_deletion_is_retried_with_its_failure_in_the_history(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    fail(database, model_id)
    answer = api.call(Role.COMPLIANCE, "POST", f"{PATH}/{deletion_id}/retry")
    assert answer.status_code == 200
    model = answer.json()["models"][0]
    assert (answer.json()["status"], model["status"], model["attempts"], model["failure"]) == (
        "pending",
        "pending",
        0,
        None,
    )
    assert entry(database, deletion_id, "deletion.retried").details == {"failures": {str(model_id): "disk full"}}
    assert claim(database, model_id) is not None  # at once, without backoff


def test_a_deletion_that_has_not_failed_cannot_be_retried(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)
    for _ in ("pending", "running"):
        assert slug(api.call(Role.OPERATOR, "POST", f"{PATH}/{deletion_id}/retry")) == (409, "nothing-to-retry")
        claim(database, model_id)


def test_failed_deletions_are_retried_by_filter(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    add_rows(database, 7, model_id, status="failed", regulation="ccpa")
    others = {
        add_rows(database, 1, model_id, status="failed")[0]: "failed",
        add_rows(database, 1, model_id, status="completed", regulation="ccpa")[0]: "completed",
    }
    answer = api.call(Role.OPERATOR, "POST", f"{PATH}/retry", params={"regulation": "ccpa"})
    assert (answer.status_code, answer.json()) == (200, {"retried": 7})
    with database.reading() as session:
        assert session.scalar(select(func.count()).where(Deletion.status == "pending")) == 7
        assert session.scalar(select(func.count()).where(DeletionTarget.status == "pending")) == 7
        assert {other: session.get_one(Deletion, other).status for other in others} == others
        retried = select(func.count()).where(AuditEntry.action == "deletion.retried")
        assert session.scalar(retried) == 7
    assert api.call(Role.OPERATOR, "POST", f"{PATH}/retry", params={"regulation": "ccpa"}).json() == {"retried": 0}
    misspelt = api.call(Role.OPERATOR, "POST", f"{PATH}/retry", params={"regulaton": "ccpa"})
    assert slug(misspelt) == (422, "invalid-request")


@pytest.mark.parametrize("regulation", ["gdpr", "ccpa"])
def test_a_deadline_is_extended_as_far_as_the_regulation_allows(api: Api, database: Database, regulation: str) -> None:
    received_at = now() - timedelta(days=3)
    due_at, latest = deadlines.due(regulation, received_at), deadlines.latest(regulation, received_at)
    columns: dict[str, Any] = {"regulation": regulation, "received_at": received_at, "due_at": due_at}
    [deletion_id] = add_rows(database, 1, **columns)
    [completed] = add_rows(database, 1, status="completed", **columns)

    def extend(until: datetime, which: uuid.UUID = deletion_id) -> Any:
        body = {"until": until.isoformat(), "reason": " the model is being retrained "}
        return api.call(Role.OPERATOR, "POST", f"{PATH}/{which}/extension", json=body)

    second = timedelta(seconds=1)
    for refused in (extend(due_at - second), extend(latest + second), extend(latest, completed)):
        assert slug(refused) == (422, "invalid-extension")
    answer = extend(latest)
    assert answer.status_code == 200
    assert datetime.fromisoformat(answer.json()["due_at"]) == latest
    assert answer.json()["extension_reason"] == "the model is being retrained"
    assert slug(extend(due_at)) == (422, "invalid-extension")  # it is due later by now
    logged = entry(database, str(deletion_id), "deletion.extended")
    assert logged.actor == "acme-operator"
    assert logged.details == {
        "reason": "the model is being retrained",
        "due_before": due_at.isoformat(),
        "due_now": latest.isoformat(),
    }


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\x00b", "a\nb", None, 7])
def test_an_extension_needs_a_reason_of_one_line(api: Api, database: Database, reason: object) -> None:
    [deletion_id] = add_rows(database, 1, due_at=now())
    body = {"until": (now() + timedelta(minutes=1)).isoformat(), "reason": reason}
    answer = api.call(Role.OPERATOR, "POST", f"{PATH}/{deletion_id}/extension", json=body)
    assert slug(answer) == (422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == ["body.reason"]


EXTENSION = {"until": "2030-01-01T00:00:00Z", "reason": "why"}


@pytest.mark.parametrize(
    ("method", "path", "body", "roles"),
    [
        ("GET", f"/{UNKNOWN}", None, {Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR}),
        ("GET", f"/{UNKNOWN}/events", None, {Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR}),
        ("DELETE", f"/{UNKNOWN}", None, {Role.COMPLIANCE, Role.OPERATOR}),
        ("POST", f"/{UNKNOWN}/retry", None, {Role.COMPLIANCE, Role.OPERATOR}),
        ("POST", f"/{UNKNOWN}/extension", EXTENSION, {Role.OPERATOR}),
        ("POST", "/retry", None, {Role.OPERATOR}),
    ],
)
def test_each_route_admits_its_roles(api: Api, method: str, path: str, body: object, roles: set[Role]) -> None:
    allowed = 200 if path == "/retry" else 404
    answers = {role: api.call(role, method, PATH + path, json=body).status_code for role in Role}
    assert answers == {role: allowed if role in roles else 403 for role in Role}
    assert api.call(None, method, PATH + path, json=body).status_code == 401


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/retry"), ("GET", "/events")])
def test_compliance_cannot_change_deletions_of_others(api: Api, database: Database, method: str, path: str) -> None:
    [deletion_id] = add_rows(database, 1, caller="somebody", status="failed")
    assert slug(api.call(Role.COMPLIANCE, method, f"{PATH}/{deletion_id}{path}")) == (404, "not-found")
    with database.reading() as session:
        assert session.get_one(Deletion, deletion_id).status == "failed"


def test_progress_includes_an_estimated_end(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = request_deletion(api)

    def estimated_end() -> str | None:
        end: str | None = api.call(Role.AUDITOR, "GET", f"{PATH}/{deletion_id}").json()["models"][0]["estimated_end"]
        return end

    assert estimated_end() is None
    claimed = claim(database, model_id)
    assert claimed is not None
    assert estimated_end() is None  # nothing is done yet
    with database.writing() as session:
        batch = session.get_one(Batch, claimed.batch_id)
        batch.started_at, batch.percent = now() - timedelta(seconds=100), 25.0
        started_at = batch.started_at
    end = estimated_end()
    assert end is not None
    seconds = (datetime.fromisoformat(end) - started_at).total_seconds()
    assert 400 <= seconds < 400 + 4 * 30  # four times the time so far, read within half a minute
