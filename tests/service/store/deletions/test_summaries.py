from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import func, select

from service.http.metrics import Metrics
from service.store import audit
from service.store.database import Database
from service.store.deletions import summaries
from service.store.deletions.summaries import Counts, DeadlineCounts, count_deadlines, write_daily_summary
from service.store.states import Role
from service.store.tables import AuditEntry, now
from tests.service.conftest import Api
from tests.service.deletion_rows import add_rows

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
PATH = "/api/v1/audit/summaries"


def midnight() -> datetime:
    return now().replace(hour=0, minute=0, second=0, microsecond=0)


def count_summaries(database: Database) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).where(AuditEntry.action == "summary.daily")) or 0


def add(database: Database, count: int = 1, **columns: object) -> None:
    """Add deletions that are in no other count: old, and due in a month."""
    add_rows(database, count, **{"received_at": now() - 90 * DAY, "due_at": now() + 30 * DAY, **columns})


def fill(database: Database) -> None:
    """Add a different number of rows to each count, and rows just outside each of them."""
    today = midnight()
    add(database, 2, received_at=today - DAY)
    add(database, 1, received_at=today - MINUTE, regulation="ccpa")
    add(database, 1, received_at=today)
    add(database, 1, received_at=today - DAY - MINUTE)
    add(database, 3, status="completed", completed_at=today - MINUTE, due_at=now() - DAY)
    add(database, 1, status="completed", completed_at=today)
    add(database, 4, status="failed", regulation="ccpa")
    add(database, 5, due_at=now() - MINUTE)
    add(database, 1, due_at=now() - MINUTE, status="running")
    add(database, 1, due_at=now() - MINUTE, status="cancelled")
    add(database, 7, due_at=now() + 7 * DAY - MINUTE)
    add(database, 1, due_at=now() + 7 * DAY + MINUTE)


def test_the_summary_of_a_day(database: Database) -> None:
    fill(database)
    summary = write_daily_summary(database)
    assert summary is not None
    assert (summary.day, summary.since) == (midnight().date() - DAY, midnight() - DAY)
    assert summary.regulations == {"gdpr": Counts(2, 3, 0, 6, 7), "ccpa": Counts(1, 0, 4, 0, 0)}
    with database.reading() as session:
        (read,) = summaries.find_summaries(session, 5)
    assert (read.day, read.since, read.regulations) == (summary.day, summary.since, summary.regulations)


def test_overdue_and_due_soon(database: Database) -> None:
    with database.reading() as session:
        assert count_deadlines(session) == DeadlineCounts(0, 0)
    fill(database)
    with database.reading() as session:
        assert count_deadlines(session) == DeadlineCounts(6, 7)
        text = Metrics().render(session).decode()
    lines = text.splitlines()
    assert {"lethe_deletions_overdue 6.0", "lethe_deletions_due_soon 7.0"} <= set(lines)
    assert 'lethe_deletions{status="failed"} 4.0' in lines


def test_a_day_has_one_summary_even_with_several_sweeps(database: Database) -> None:
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write_daily_summary, [database] * 4))
    assert count_summaries(database) == 1


def test_the_database_refuses_a_second_summary_of_a_day(database: Database) -> None:
    """A sweep that read before another one wrote fails to write."""
    write_daily_summary(database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries, "find_summaries", lambda *_: [])
        assert write_daily_summary(database) is None
    assert count_summaries(database) == 1


def test_a_day_without_a_sweep_is_in_the_next_summary(database: Database) -> None:
    last = midnight() - 4 * DAY
    with database.writing() as session:
        numbers = {"since": last.isoformat(), "regulations": {}}
        audit.record(session, "lethe", "summary.daily", last.date().isoformat(), **numbers)
    add(database, 1, received_at=last + DAY)
    add(database, 1, received_at=last + DAY - MINUTE)
    summary = write_daily_summary(database)
    assert summary is not None
    assert summary.since == last + DAY
    assert summary.regulations["gdpr"].received == 1


def test_operators_and_auditors_read_them_newest_first(api: Api, database: Database) -> None:
    first = date(2026, 3, 1)
    counts = {"received": 1, "completed": 2, "failed": 3, "overdue": 4, "due_soon": 5}
    with database.writing() as session:
        for number in range(5):
            day = first + number * DAY
            since = datetime(day.year, day.month, day.day, tzinfo=UTC).isoformat()
            audit.record(session, "lethe", "summary.daily", day.isoformat(), since=since, regulations={"gdpr": counts})
        audit.record(session, "lethe", "deletion.received", "2026-03-09", subjects=[])
    page = api.call(Role.AUDITOR, "GET", f"{PATH}?limit=3").json()["items"]
    assert [item["day"] for item in page] == ["2026-03-05", "2026-03-04", "2026-03-03"]
    assert page[0]["regulations"] == {"gdpr": counts}
    assert page[0]["since"] == "2026-03-05T00:00:00Z"
    earlier = api.call(Role.OPERATOR, "GET", f"{PATH}?before={page[-1]['day']}").json()["items"]
    assert [item["day"] for item in earlier] == ["2026-03-02", "2026-03-01"]
    assert api.call(Role.OPERATOR, "GET", f"{PATH}?before=canary").status_code == 422
