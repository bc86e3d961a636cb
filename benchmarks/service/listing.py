"""`lethe bench listing`: how long the database takes for a page of deletions, by every filter that the API has."""

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
"""Many more than the ten after which PostgreSQL may keep a plan that no longer looks at the values."""
CALLERS = 20
DAY = timedelta(days=1)
MODELS = {name: uuid.UUID(int=number) for number, name in enumerate(("of most", "of few", "retired"), start=1)}

# Spread evenly over DAYS until now. What is old is done, but for some, and for what failed in the first days; of the
# last month one in fifty is open. Most concern one model, few another; a third is retired: only the oldest concern it.
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
        SELECT n, CAST(:moment AS timestamptz) - (:rows - n) * interval '1 day' * :days / :rows AS received
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
    """Of first pages and of pages from the middle, in milliseconds.

    The first two are the server's planning and execution. A round trip also waits for a busy machine, but only it shows
    a plan that was kept from other values.
    """

    filter: str
    rows: int
    median_ms: float
    worst_ms: float
    median_round_trip_ms: float
    worst_round_trip_ms: float


def bench_listing(rows: int) -> list[FilterTimes]:
    """Fill a scratch PostgreSQL with so many deletions, then take pages by each filter."""
    with tempfile.TemporaryDirectory() as folder, scratch_postgresql(Path(folder)) as url, stages() as report:
        database = Database(url)
        try:
            migrate.upgrade(database)
            moment = now()
            fill(database, rows, moment, report("filling"))
            return _measure(database, rows, moment, report("listing"))
        finally:
            database.close()


def fill(database: Database, rows: int, moment: datetime, on_progress: OnProgress) -> None:
    known = {"rows": rows, "days": DAYS, "moment": moment, "callers": CALLERS, "models": list(MODELS.values())}
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for number, statement in enumerate(FILL):
            on_progress("filling", number / len(FILL))
            connection.execute(text(statement), {name: known[name] for name in known if f":{name}" in statement})
        connection.execute(text("VACUUM"))


def filters(moment: datetime) -> Mapping[str, Criteria]:
    """Every filter of the list by itself: as it is used, and where it is hardest."""
    year_ago = moment - 365 * DAY
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
        "received, a year": Criteria(received_from=year_ago, received_to=moment),
        "due, a day": Criteria(due_from=year_ago + 60 * DAY, due_to=year_ago + 61 * DAY),
        "due, a year": Criteria(due_from=year_ago, due_to=moment),
        "due soon": Criteria(due_from=moment, due_to=moment + 7 * DAY),
        "overdue": Criteria(overdue=True),
        "not overdue": Criteria(overdue=False),
    }


def show(found: Sequence[FilterTimes]) -> Table:
    table = Table("filter", title=f"A page of {PAGE} of {found[0].rows:,} deletions, milliseconds")
    for heading in ("median", "worst", "round trip, median", "round trip, worst"):
        table.add_column(heading, justify="right")
    for row in found:
        times = (row.median_ms, row.worst_ms, row.median_round_trip_ms, row.worst_round_trip_ms)
        table.add_row(row.filter, *(f"{time:.1f}" for time in times))
    return table


def _measure(database: Database, rows: int, moment: datetime, on_progress: OnProgress) -> list[FilterTimes]:
    """On one connection and in ever another order, as a service uses it: a plan that one filter left must suit all."""
    chosen, order = filters(moment), random.Random(0)  # noqa: S311
    windows = (Window(PAGE), Window(PAGE, Position(moment - DAYS / 2 * DAY, uuid.UUID(int=0))))
    pages = [(name, window) for name in chosen for window in windows]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    with database.reading() as session:
        plan_for_values(session)
        connection = session.connection()
        for number in range(ROUNDS):
            on_progress("listing", number / ROUNDS)
            for name, window in order.sample(pages, len(pages)):
                query = page_query(chosen[name], window)
                compiled = query.compile(connection, compile_kwargs={"render_postcompile": True})
                times[name].append(_milliseconds(connection, str(compiled), compiled.params))
    return [_summed_up(name, rows, taken) for name, taken in times.items()]


def _milliseconds(connection: Connection, statement: str, values: Mapping[str, Any]) -> tuple[float, float]:
    """What the server says of itself, and until the rows are here (without SQLAlchemy, which builds the statement)."""
    started = time.perf_counter()
    connection.exec_driver_sql(statement, values).all()
    round_trip = 1000 * (time.perf_counter() - started)
    (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).scalar_one()
    return plan["Planning Time"] + plan["Execution Time"], round_trip


def _summed_up(name: str, rows: int, taken: Sequence[tuple[float, float]]) -> FilterTimes:
    server, round_trip = zip(*taken, strict=True)
    return FilterTimes(
        name, rows, statistics.median(server), max(server), statistics.median(round_trip), max(round_trip)
    )
