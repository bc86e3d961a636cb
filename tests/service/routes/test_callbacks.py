"""Callbacks over HTTP: requesting, listing and resending them."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select

from service.store.callbacks import outbox
from service.store.callbacks.claiming import claim_callbacks
from service.store.callbacks.slots import Slots
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Callback, Deletion
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/callbacks"
URL = "https://hooks.example/lethe?key=secret"
UNKNOWN = uuid.UUID("00000000-0000-4000-8000-000000000000")


def request_deletion(api: Api, *urls: str) -> str:
    """Request a deletion that completes at once, since no model holds the person."""
    body = {"subjects": [samples.person(999)], "callback_urls": list(urls)}
    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body)
    assert answer.status_code == 201, answer.text
    deletion_id: str = answer.json()["id"]
    return deletion_id


def mark_dead(database: Database, reason: str = "the receiver answered 500") -> uuid.UUID:
    with database.writing() as session:
        (claimed,) = claim_callbacks(session, Slots(), 60)
        outbox.mark_failed(session, claimed, reason, None)
    return claimed.id


def test_a_dead_callback_is_listed_and_resent(api: Api, database: Database) -> None:
    deletion_id = request_deletion(api, URL)
    assert api.call(Role.OPERATOR, "GET", PATH, params={"status": "dead"}).json()["items"] == []
    callback_id = mark_dead(database)
    answer = api.call(Role.OPERATOR, "GET", PATH, params={"status": "dead"})
    (callback,) = answer.json()["items"]
    assert (callback["id"], callback["deletion_id"]) == (str(callback_id), deletion_id)
    assert (callback["host"], callback["told"], callback["attempts"]) == ("hooks.example", "completed", 1)
    assert (callback["status"], callback["failure"], callback["next_attempt_at"]) == (
        "dead",
        "the receiver answered 500",
        None,
    )
    assert "secret" not in answer.text
    history = api.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{deletion_id}/events").json()["items"]
    assert [event["details"]["host"] for event in history if event["action"] == "callback.dead"] == ["hooks.example"]
    assert 'lethe_callbacks{status="dead"} 1.0' in api.call(None, "GET", "/metrics").text
    again = api.call(Role.OPERATOR, "POST", f"{PATH}/{callback_id}/resend")
    assert (again.status_code, again.json()["status"], again.json()["attempts"]) == (200, "pending", 0)
    refused = api.call(Role.OPERATOR, "POST", f"{PATH}/{callback_id}/resend")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:lethe:problem:not-resendable")


def test_pages_newest_first(api: Api, database: Database) -> None:
    for _ in range(2):
        request_deletion(api, URL, "https://two.example/")
    with database.reading() as session:
        query = select(Callback.id).order_by(Callback.created_at.desc(), Callback.id.desc())
        expected = [str(callback_id) for callback_id in session.scalars(query)]
    ids, cursor = [], None
    while cursor is not None or not ids:
        page = api.call(Role.AUDITOR, "GET", PATH, params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        ids += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert ids == expected
    assert len(ids) == 4


@pytest.mark.parametrize(
    "urls",
    [
        ["https://user:canary@hooks.example/"],
        ["https://hooks.example/#canary"],
        ["ftp://canary.example/"],
        ["https://canary.example/" + "a" * 2000],
        ["https://hooks.example/canary"] * 6,
        "https://hooks.example/canary",
    ],
)
def test_invalid_urls_are_refused_and_not_repeated(api: Api, database: Database, urls: object) -> None:
    body = {"subjects": [samples.person(999)], "callback_urls": urls}
    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith("body.callback_urls")
    assert "canary" not in answer.text
    with database.reading() as session:
        assert session.scalars(select(Deletion)).all() == []


@pytest.mark.parametrize(
    ("method", "path", "roles", "status"),
    [
        ("GET", PATH, {Role.OPERATOR, Role.AUDITOR}, 200),
        ("POST", f"{PATH}/{UNKNOWN}/resend", {Role.OPERATOR}, 404),
    ],
)
def test_each_route_admits_its_roles(api: Api, method: str, path: str, roles: set[Role], status: int) -> None:
    answers = {role: api.call(role, method, path).status_code for role in Role}
    assert answers == {role: status if role in roles else 403 for role in Role}
    assert api.call(None, method, path).status_code == 401


def test_the_openapi_document_tells_receivers_what_arrives(api: Api) -> None:
    document = api.call(None, "GET", "/openapi.json").json()
    (callback,) = document["paths"]["/api/v1/deletions"]["post"]["callbacks"].values()
    assert "{$request.body#/callback_urls}" in callback
    assert {"id", "sequence", "status", "certificates"} <= set(
        document["components"]["schemas"]["CallbackEvent"]["properties"]
    )
