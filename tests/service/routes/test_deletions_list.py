"""The list of deletions and its CSV form: order, pages, filters, and visibility by role."""

from __future__ import annotations

import csv
import io
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from service.store.tables import now
from tests import samples
from tests.service.conftest import Api
from tests.service.deletion_rows import add_rows

PATH = "/api/v1/deletions"
HOUR = timedelta(hours=1)


def stamp(timestamp: datetime) -> str:
    return timestamp.isoformat().replace("+00:00", "Z")


def list_ids(api: Api, **params: object) -> list[str]:
    answer = api.call(Role.OPERATOR, "GET", PATH, params=params)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def test_pages_give_each_deletion_once_newest_first(api: Api, database: Database) -> None:
    expected = [str(deletion_id) for deletion_id in add_rows(database, 23)]
    ids: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        page = api.call(
            Role.OPERATOR, "GET", PATH, params={"limit": 5, **({"cursor": cursor} if cursor else {})}
        ).json()
        ids += [item["id"] for item in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next_cursor"]
        if cursor is None:
            break
        add_rows(database, 1, received_at=now())  # newer than all pages to come: must not shift them
    assert ids == expected
    assert sizes == [5, 5, 5, 5, 3]


def test_the_default_page_has_fifty(api: Api, database: Database) -> None:
    add_rows(database, 51)
    page = api.call(Role.OPERATOR, "GET", PATH).json()
    assert len(page["items"]) == 50
    assert page["next_cursor"]
    assert len(list_ids(api, limit=51)) == 51


def test_each_filter_selects_exactly_its_matches(api: Api, settings: Settings, database: Database) -> None:
    """Each deletion differs from the others in one column; the filter on it selects exactly that deletion."""
    model_id = samples.register_sample(settings, database)
    start = now() - timedelta(days=10)
    due, past = start + timedelta(days=31), start - timedelta(days=60)
    plain: dict[str, Any] = {"received_at": start, "due_at": due}
    late_columns: dict[str, Any] = {"received_at": past, "due_at": past + timedelta(days=31)}
    [failed] = add_rows(database, 1, **{**plain, "status": "failed"})
    [ccpa] = add_rows(database, 1, **{**plain, "regulation": "ccpa"})
    [held] = add_rows(database, 1, **{**plain, "model_id": model_id})
    [early] = add_rows(database, 1, **{**plain, "received_at": start - HOUR})
    [late] = add_rows(database, 1, **{**plain, "received_at": start + HOUR})
    [due_soon] = add_rows(database, 1, **{**plain, "due_at": due - HOUR})
    [due_later] = add_rows(database, 1, **{**plain, "due_at": due + HOUR})
    [overdue] = add_rows(database, 1, **late_columns)
    [done_late] = add_rows(database, 1, **{**late_columns, "status": "completed"})
    [cancelled_late] = add_rows(database, 1, **{**late_columns, "status": "cancelled"})
    everything = {failed, ccpa, held, early, late, due_soon, due_later, overdue, done_late, cancelled_late}
    table: list[tuple[dict[str, object], set[uuid.UUID]]] = [
        ({}, everything),
        ({"status": "failed"}, {failed}),
        ({"status": ["failed", "completed"]}, {failed, done_late}),
        ({"regulation": "ccpa"}, {ccpa}),
        ({"model": str(model_id)}, {held}),
        ({"model": str(uuid.uuid4())}, set()),
        ({"received_from": stamp(past + HOUR), "received_to": stamp(start)}, {early}),
        ({"received_to": stamp(past + HOUR)}, {overdue, done_late, cancelled_late}),
        ({"received_from": stamp(start + HOUR)}, {late}),
        ({"received_from": stamp(start - HOUR), "received_to": stamp(start)}, {early}),
        ({"due_from": stamp(due + HOUR)}, {due_later}),
        ({"due_from": stamp(start), "due_to": stamp(due)}, {due_soon}),
        ({"due_to": stamp(start)}, {overdue, done_late, cancelled_late}),
        ({"overdue": "true"}, {overdue}),
        ({"overdue": "false"}, everything - {overdue}),
        ({"overdue": "true", "regulation": "ccpa"}, set()),
    ]
    for params, expected in table:
        assert set(list_ids(api, **params)) == {str(deletion_id) for deletion_id in expected}, params
        rows = list(csv.DictReader(io.StringIO(api.call(Role.OPERATOR, "GET", f"{PATH}.csv", params=params).text)))
        assert {row["id"] for row in rows} == {str(deletion_id) for deletion_id in expected}, params


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"cursor": "nonsense"}, "query.cursor"),
        ({"cursor": "!" * 32}, "query.cursor"),
        ({"cursor": "f" * 32}, "query.cursor"),  # well-formed, but outside the calendar
        ({"cursor": "é" * 32}, "query.cursor"),
        ({"limit": "0"}, "query.limit"),
        ({"limit": "201"}, "query.limit"),
        ({"status": "lost"}, "query.status.0"),
        ({"regulation": "hipaa"}, "query.regulation"),
        ({"model": "x"}, "query.model"),
        ({"received_from": "2026-01-01T00:00:00"}, "query.received_from"),  # without a time zone
        ({"due_to": "9999-12-31T23:59:59-12:00"}, "query.due_to"),
        ({"overdue": "maybe"}, "query.overdue"),
        ({"stauts": "failed"}, "query"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, params: dict[str, str], field: str) -> None:
    answer = api.call(Role.OPERATOR, "GET", PATH, params=params)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("role", "visible"),
    [(Role.COMPLIANCE, "own"), (Role.OPERATOR, "all"), (Role.AUDITOR, "all"), (Role.ENGINEER, None)],
)
def test_compliance_lists_its_own_and_others_all(api: Api, database: Database, role: Role, visible: str | None) -> None:
    [own] = add_rows(database, 1, caller="acme-compliance")
    [other] = add_rows(database, 1, caller="somebody")
    expected = {"own": {str(own)}, "all": {str(own), str(other)}, None: None}[visible]
    for path in (PATH, f"{PATH}.csv"):
        answer = api.call(role, "GET", path)
        if expected is None:
            assert answer.status_code == 403
        else:
            assert {deletion_id for deletion_id in (str(own), str(other)) if deletion_id in answer.text} == expected
    assert api.call(None, "GET", PATH).status_code == 401
    assert api.call(None, "GET", f"{PATH}.csv").status_code == 401


def test_a_deletion_shows_the_days_left(api: Api, database: Database) -> None:
    table = [
        ("pending", timedelta(days=3, hours=1), 3, False),
        ("pending", timedelta(hours=1), 0, False),
        ("failed", timedelta(hours=-1), -1, True),
        ("running", timedelta(days=-2, hours=-1), -3, True),
        ("completed", timedelta(days=-2), None, False),
        ("cancelled", timedelta(days=-2), None, False),
    ]
    for status, remaining, days_left, overdue in table:
        [deletion_id] = add_rows(database, 1, status=status, due_at=now() + remaining)
        deletion = api.call(Role.AUDITOR, "GET", f"{PATH}/{deletion_id}").json()
        assert (deletion["days_left"], deletion["overdue"]) == (days_left, overdue), status
        assert len(deletion["what_happens_next"]) > 20
        assert datetime.fromisoformat(deletion["due_at"]).utcoffset() == timedelta(0)


def test_the_csv_has_every_match_and_no_formula(api: Api, database: Database) -> None:
    expected = [str(deletion_id) for deletion_id in add_rows(database, 3000)]
    [evil] = add_rows(
        database, 1, received_at=now(), request_id="-1+2", extension_reason='=HYPERLINK("http://x"),\n@SUM(1)'
    )
    answer = api.call(Role.OPERATOR, "GET", f"{PATH}.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == [str(evil), *expected]
    assert rows[0]["extension_reason"] == '\'=HYPERLINK("http://x"),\n@SUM(1)'
    assert rows[0]["request_id"] == "'-1+2"
    assert int(rows[-1]["days_left"]) < 0  # a number stays a number
    assert rows[-1]["subjects"] == uuid.UUID(expected[-1]).hex * 2
