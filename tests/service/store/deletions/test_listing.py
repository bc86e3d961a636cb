"""Cost of a page: the number of queries, and the index behind each filter."""

from __future__ import annotations

import re
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select, text

from benchmarks.service.listing import DAYS, fill, filters
from service.settings import Settings
from service.store.database import Database
from service.store.deletions import deadlines
from service.store.deletions.listing import (
    EXPORT_PAGE_SIZE,
    MAX_PERIOD,
    MIN_PERIOD,
    Criteria,
    export,
    find_page,
    matches,
    page_query,
)
from service.store.paging import Position, Window
from service.store.states import DeletionStatus
from service.store.tables import Deletion, now
from tests import samples
from tests.service.deletion_rows import START, add_rows

HOUR = timedelta(hours=1)


@contextmanager
def count_statements(database: Database) -> Iterator[list[str]]:
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", record)
    yield statements
    event.remove(database.engine, "before_cursor_execute", record)


@pytest.mark.parametrize("count", [1, 60])
def test_a_page_takes_four_queries_however_long(settings: Settings, database: Database, count: int) -> None:
    model_id = samples.register_sample(settings, database)
    add_rows(database, count, model_id)
    with database.reading() as session, count_statements(database) as statements:
        page = find_page(session, Criteria(), Window(200))
    assert len(page.items) == count
    assert all(len(view.commitments) == len(view.targets) == 1 for view in page.items)
    assert len([statement for statement in statements if statement.startswith("SELECT")]) == 4


@pytest.mark.parametrize(
    ("criteria", "indexes"),
    [
        (Criteria(), ["ix_deletions_received_at_id"]),
        (Criteria(received_from=START, received_to=START + HOUR), ["ix_deletions_received_at_id"]),
        (Criteria(regulation="ccpa"), ["ix_deletions_regulation_received_at_id", "ix_deletions_received_at_id"]),
        (Criteria(statuses=["failed"]), ["ix_deletions_status", "ix_deletions_received_at_id"]),
        (Criteria(caller="acme"), ["ix_deletions_caller", "ix_deletions_received_at_id"]),
        (Criteria(due_from=START, due_to=START + HOUR), ["ix_deletions_due_at", "ix_deletions_received_at_id"]),
        (Criteria(statuses=["pending", "failed"]), ["ix_deletions_status_received_at_id"]),
        (Criteria(overdue=True), ["ix_deletions_status_received_at_id"]),
        (Criteria(overdue=False), ["ix_deletions_received_at_id"]),
        (Criteria(model_id=uuid.UUID(int=1)), ["ix_deletion_targets_model_id_received_at_deletion_id"]),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_each_filter_is_served_by_an_index(
    database: Database, criteria: Criteria, indexes: list[str], later: bool
) -> None:
    after = Position(now(), uuid.uuid4()) if later else None
    plan = explain(database, criteria, after)
    assert "Seq Scan on deletions" not in plan
    assert not any(line.startswith("SCAN deletions") and "INDEX" not in line for line in plan.splitlines()), plan
    assert any(index in plan for index in indexes), plan


def explain(database: Database, criteria: Criteria, after: Position | None, *, empty: bool = True) -> str:
    query = page_query(criteria, Window(50, after)).compile(database.engine, compile_kwargs={"literal_binds": True})
    with database.engine.connect() as connection:
        if database.engine.dialect.name == "sqlite":
            return "\n".join(row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}"))
        if empty:
            # Otherwise an empty table is read as a whole. A bitmap costs the same by every index with these columns, so
            # that statistics which an earlier test left behind would decide.
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {query}"))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_no_filter_reads_a_large_table_as_a_whole(database: Database) -> None:
    """The planner, with its own statistics, uses an index for every page and never sorts all matches."""
    end = now()
    fill(database, 20_000, end, lambda _stage, _fraction: None)
    middle = Position(end - timedelta(days=DAYS / 2), uuid.UUID(int=0))
    for name, criteria in filters(end).items():
        for after in (None, middle):
            plan = explain(database, criteria, after, empty=False)
            assert "Seq Scan" not in plan, f"{name}: {plan}"
            sorted_rows = [int(rows) for rows in re.findall(r"Sort  \(cost=\S+ rows=(\d+)", plan)]
            assert all(rows <= 51 * len(DeletionStatus) for rows in sorted_rows), f"{name}: {plan}"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_each_query_is_planned_for_its_values(database: Database) -> None:
    """A prepared statement would use one plan for a week and for a year."""
    criteria = Criteria(due_from=now(), due_to=now() + timedelta(days=7))
    with database.reading() as session:
        for _ in range(20):
            find_page(session, criteria, Window(50))
        plans = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%ORDER BY%LIMIT%'"
        ((generic, custom),) = session.execute(text(plans)).all()
    assert generic == 0
    assert custom > 5  # it was prepared, so the test means something


@pytest.mark.parametrize("statuses", [["pending", "failed", "pending"], ["completed", "cancelled", "running"]])
@pytest.mark.parametrize("overdue", [None, True, False])
@pytest.mark.parametrize("of_model", [False, True])
def test_pages_are_the_same_for_every_query_plan(
    settings: Settings, database: Database, statuses: list[str], overdue: bool | None, of_model: bool
) -> None:
    """Compare with a plain query over all rows: combined filters, page by page."""
    model_id = samples.register_sample(settings, database)
    for number, status in enumerate(DeletionStatus):
        due_at = now() + timedelta(days=number - 2)
        add_rows(database, 7, model_id if number % 2 else None, status=status, due_at=due_at)
    criteria = Criteria(statuses=statuses, overdue=overdue, model_id=model_id if of_model else None)
    with database.reading() as session:
        plain = select(Deletion.id).where(matches(criteria))
        expected = session.scalars(plain.order_by(Deletion.received_at.desc(), Deletion.id.desc())).all()
        ids: list[uuid.UUID] = []
        window: Window | None = Window(3)
        while window is not None:
            page = find_page(session, criteria, window)
            ids += [view.deletion.id for view in page.items]
            window = Window(3, page.end) if page.end else None
    assert ids == expected


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_round_trips(timestamp: datetime, deletion_id: uuid.UUID) -> None:
    position = Position(timestamp, deletion_id)
    assert Position.decode(position.encode()) == position


@given(st.datetimes(timezones=st.just(UTC), max_value=datetime(9998, 1, 1)), st.sampled_from(["gdpr", "ccpa"]))  # noqa: DTZ001
def test_a_deadline_is_as_far_from_receipt_as_the_filters_imply(received_at: datetime, regulation: str) -> None:
    assert deadlines.due(regulation, received_at) - received_at >= MIN_PERIOD
    assert deadlines.latest(regulation, received_at) - received_at <= MAX_PERIOD


def test_a_due_date_before_the_calendar_begins_implies_nothing(database: Database) -> None:
    expected = add_rows(database, 1)
    earliest = datetime(1, 1, 1, tzinfo=UTC)
    with database.reading() as session:
        page = find_page(session, Criteria(due_from=earliest, due_to=now() + 10_000 * HOUR), Window(5))
        assert [view.deletion.id for view in page.items] == expected
        assert not find_page(session, Criteria(due_to=earliest), Window(5)).items


def test_an_export_holds_one_page_at_a_time(database: Database) -> None:
    add_rows(database, 12 * EXPORT_PAGE_SIZE)
    peaks, total = [], 0
    tracemalloc.start()
    for page in export(database, Criteria()):
        total += len(page)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
    tracemalloc.stop()
    assert total == 12 * EXPORT_PAGE_SIZE
    assert peaks[-1] < 1.5 * peaks[1]
