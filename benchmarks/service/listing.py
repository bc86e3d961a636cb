"""`lethe bench listing`: database time for a page of deletions, for every filter of the API."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.table import Table
from sqlalchemy import Connection, text

from benchmarks.service.database import scratch_postgresql
from lethe.progress import OnProgress, stages
from service.store import migrate
from service.store.database import Database
from service.store.deletions.listing import Criteria, page_query
from service.store.dialect import plan_for_values
from service.store.paging import Position, Window
from service.store.tables import now

DAYS = 400
PAGE = 50
ROUNDS = 30
"""Many more than the ten after which PostgreSQL may switch to a generic plan."""
CALLERS = 20
DAY = timedelta(days=1)
MODELS = {name: uuid.UUID(int=number) for number, name in enumerate(("of most", "of few", "retired"), start=1)}

# Deletions are spread evenly over the last DAYS. Old ones are completed, except a few and those that failed in the
# first days. One in fifty of the last month is open. Most target the first model, few the second, and only the oldest
# target the third, which is retired.
FILL = (
    """
    INSERT INTO models (id, name, family, posterior_kind, config, policy, created_at)
    SELECT id, 'bench', 'gaussian-mixture', 'variational', '{}', '{}', now() FROM unnest(CAST(:models AS uuid[])) AS id
    """,
    """
    INSERT INTO deletions (id, caller, regulation, status, request_id, received_at, due_at, completed_at)
    SELECT CAST(md5(CAST(n AS text)) AS uuid), 'caller-' || (n % :callers),
        CASE WHEN n % 5 = 0 THEN 'ccpa' ELSE 'gdpr' END,
        CASE
            WHEN n % 10007 = 0 OR n < :rows / 100 THEN 'failed'
            WHEN n % 997 = 0 THEN 'cancelled'
            WHEN n > :rows * (1 - 30.0 / :days) AND n % 50 = 0 THEN 'pending'
            WHEN n % 20011 = 0 THEN 'running'
            ELSE 'completed'
        END,
        'bench', received, received + CASE WHEN n % 5 = 0 THEN interval '45 days' ELSE interval '30 days' END, NULL
    FROM (
        SELECT n, CAST(:now AS timestamptz) - (:rows - n) * interval '1 day' * :days / :rows AS received
        FROM generate_series(1, :rows) AS n
    ) AS numbered
    """,
    """
    INSERT INTO deletion_targets (deletion_id, model_id, status, attempts, received_at, not_before)
    SELECT id, model, status, 1, received_at, received_at
    FROM (SELECT *, row_number() OVER (ORDER BY received_at, id) AS n FROM deletions) AS numbered
    JOIN unnest(CAST(:models AS uuid[])) WITH ORDINALITY AS chosen (model, place)
        ON place = CASE WHEN n <= :rows / 50 THEN 3 WHEN n % 100 = 0 THEN 2 ELSE 1 END
    """,
    "ANALYZE",
)


@dataclass(frozen=True)
class FilterTimes:
    """Milliseconds of first pages and of pages from the middle.

    The first two are the server's planning and execution. A round trip also includes other load on the machine, but it
    alone reveals a generic plan.
    """

    filter: str
    rows: int
    median_ms: float
    worst_ms: float
    median_round_trip_ms: float
    worst_round_trip_ms: float


def bench_listing(rows: int) -> list[FilterTimes]:
    """Fill a scratch PostgreSQL with deletions, then read pages with each filter."""
    with tempfile.TemporaryDirectory() as folder, scratch_postgresql(Path(folder)) as url, stages() as report:
        database = Database(url)
        try:
            migrate.upgrade(database)
            end = now()
            fill(database, rows, end, report("filling"))
            return _measure(database, rows, end, report("listing"))
        finally:
            database.close()


def fill(database: Database, rows: int, end: datetime, on_progress: OnProgress) -> None:
    parameters = {"rows": rows, "days": DAYS, "now": end, "callers": CALLERS, "models": list(MODELS.values())}
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for number, statement in enumerate(FILL):
            on_progress("filling", number / len(FILL))
            connection.execute(text(statement), _used(parameters, statement))
        connection.execute(text("VACUUM"))


def _used(parameters: Mapping[str, Any], statement: str) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if f":{name}" in statement}


def filters(end: datetime) -> Mapping[str, Criteria]:
    """Return every filter of the list by itself: its common use, and its hardest case."""
    year_ago = end - 365 * DAY
    return {
        "none": Criteria(),
        "caller": Criteria(caller="caller-7"),
        "caller, nobody": Criteria(caller="nobody"),
        "regulation": Criteria(regulation="ccpa"),
        **{f"status {status}": Criteria(statuses=[status]) for status in ("completed", "pending", "running", "failed")},
        "status, several": Criteria(statuses=["pending", "running", "failed"]),
        **{f"model {name}": Criteria(model_id=model_id) for name, model_id in MODELS.items()},
        "model, unknown": Criteria(model_id=uuid.UUID(int=9)),
        "received, a day": Criteria(received_from=year_ago, received_to=year_ago + DAY),
        "received, a year": Criteria(received_from=year_ago, received_to=end),
        "due, a day": Criteria(due_from=year_ago + 60 * DAY, due_to=year_ago + 61 * DAY),
        "due, a year": Criteria(due_from=year_ago, due_to=end),
        "due soon": Criteria(due_from=end, due_to=end + 7 * DAY),
        "overdue": Criteria(overdue=True),
        "not overdue": Criteria(overdue=False),
    }


def show(times: Sequence[FilterTimes]) -> Table:
    table = Table("filter", title=f"A page of {PAGE} of {times[0].rows:,} deletions, milliseconds")
    for heading in ("median", "worst", "round trip, median", "round trip, worst"):
        table.add_column(heading, justify="right")
    for row in times:
        columns = (row.median_ms, row.worst_ms, row.median_round_trip_ms, row.worst_round_trip_ms)
        table.add_row(row.filter, *(f"{milliseconds:.1f}" for milliseconds in columns))
    return table


def _measure(database: Database, rows: int, end: datetime, on_progress: OnProgress) -> list[FilterTimes]:
    """Measure on one connection in random order, like a service: a cached plan of one filter must suit all."""
    criteria, order = filters(end), random.Random(0)  # noqa: S311
    windows = (Window(PAGE), Window(PAGE, Position(end - DAYS / 2 * DAY, uuid.UUID(int=0))))
    pages = [(name, window) for name in criteria for window in windows]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in criteria}
    with database.reading() as session:
        plan_for_values(session)
        connection = session.connection()
        for number in range(ROUNDS):
            on_progress("listing", number / ROUNDS)
            for name, window in order.sample(pages, len(pages)):
                query = page_query(criteria[name], window)
                compiled = query.compile(connection, compile_kwargs={"render_postcompile": True})
                times[name].append(_milliseconds(connection, str(compiled), compiled.params))
    return [_summarise(name, rows, measured) for name, measured in times.items()]


def _milliseconds(connection: Connection, statement: str, values: Mapping[str, Any]) -> tuple[float, float]:
    """Return the server's own time and the round trip, without SQLAlchemy's statement building."""
    started = time.perf_counter()
    connection.exec_driver_sql(statement, values).all()
    round_trip = 1000 * (time.perf_counter() - started)
    (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).scalar_one()
    return plan["Planning Time"] + plan["Execution Time"], round_trip


def _summarise(name: str, rows: int, times: Sequence[tuple[float, float]]) -> FilterTimes:
    server, round_trip = zip(*times, strict=True)
    return FilterTimes(
        name, rows, statistics.median(server), max(server), statistics.median(round_trip), max(round_trip)
    )
