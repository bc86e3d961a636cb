"""Statements and types that differ between SQLite and PostgreSQL.

Connections differ in engines.py, errors in database_errors.py, dead rows in dead_rows.py. No other module asks which
database it talks to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, DateTime, Dialect, Engine, Index, Integer, func, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session
from sqlalchemy.types import TypeDecorator

T = TypeVar("T")

CHUNK_SIZE = 5_000
"""Values in one statement. SQLite binds at most 32,766 parameters, PostgreSQL 65,535; a row binds up to six."""
PUBLICATION_LOCK_SECONDS = 45.0
"""Longer than a stopped publisher may hold the log: those who wait for it need not compute their batches again."""

ACTIVITY_SECONDS = 3.0
"""Interval of statements during a computation. A tenth of the longest pause that the server allows (engines.py)."""

_NOTHING = text("SELECT 1")
_SET_LOCAL = text("SELECT set_config(:name, :value, true)")
_LOCK = text("SELECT pg_advisory_xact_lock(hashtext(:name))")
_LOCK_SHARED = text("SELECT pg_advisory_xact_lock_shared(hashtext(:name))")
_TRY_LOCKS = text("SELECT n, pg_try_advisory_xact_lock(n) FROM unnest(CAST(:numbers AS bigint[])) AS n")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC time on every database. SQLite drops the time zone, so it is added again on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


CLOCK = func.clock_timestamp(type_=UtcDateTime())
"""Database's time at this instant, not at the start of the transaction. On SQLite engines.py defines the function."""


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index over the rows that match `where`, on either database."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield the values in lists small enough for one statement."""
    iterator = iter(values)
    while chunk := list(islice(iterator, CHUNK_SIZE)):
        yield chunk


def insert(session: Session, table: type[DeclarativeBase]) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that supports ON CONFLICT."""
    return postgresql.insert(table) if _is_postgresql(session) else sqlite.insert(table)


def lock(session: Session | Connection, name: str) -> None:
    """Wait for the lock of this name and hold it until the transaction ends. On SQLite every writer is alone."""
    if _is_postgresql(session):
        session.execute(_LOCK, {"name": name})


def lock_shared(session: Session, name: str) -> None:
    """Like `lock`, but shared with others that call this. Waits while one holds, or waits for, the lock alone."""
    if _is_postgresql(session):
        session.execute(_LOCK_SHARED, {"name": name})


def try_locks(session: Session, numbers: Iterable[int]) -> frozenset[int]:
    """Lock these 64-bit numbers until the transaction ends; return those that another transaction holds.

    Never waits, so it cannot deadlock. On SQLite every writer is alone, so none is held.
    """
    if not _is_postgresql(session):
        return frozenset()
    rows = session.execute(_TRY_LOCKS, {"numbers": sorted(set(numbers))})
    return frozenset(number for number, is_locked in rows if not is_locked)


def plan_for_values(session: Session) -> None:
    """Plan each query of this transaction for its own values.

    The driver prepares frequent statements, for which PostgreSQL may keep one plan for all values: the plan that suits
    deletions due this week takes most of a second for those of a year.
    """
    if _is_postgresql(session):
        session.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))


def wait_for_locks(session: Session, seconds: float) -> None:
    """Limit how long each statement of this transaction waits for a lock. SQLite waits only when it begins."""
    if _is_postgresql(session):
        session.execute(_SET_LOCAL, {"name": "lock_timeout", "value": f"{int(1000 * seconds)}ms"})


def allow_long_work(session: Session) -> None:
    """Let this transaction's statements take as long as they need, and wait for locks until stopped holders are gone.

    For work that would have to be repeated as a whole. Pauses between its statements stay limited.
    """
    wait_for_locks(session, PUBLICATION_LOCK_SECONDS)
    if _is_postgresql(session):
        session.execute(_SET_LOCAL, {"name": "statement_timeout", "value": "0"})


def stay_active(session: Session, items: Iterable[T]) -> Iterator[T]:
    """Yield the items of a long computation inside a transaction, with a statement to the server every few seconds.

    Without it, the server would take the session for that of a lost host. A process that is stopped sends none.
    """
    active_at = time.monotonic()
    for item in items:
        if time.monotonic() - active_at >= ACTIVITY_SECONDS:
            session.connection().execute(_NOTHING)
            active_at = time.monotonic()
        yield item


def lift_limits(connection: Connection) -> None:
    """Lift all time limits of this transaction: a migration takes as long as its tables are large."""
    if _is_postgresql(connection):
        for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(_SET_LOCAL, {"name": name, "value": "0"})


def has_damage(engine: Engine) -> bool:
    """Whether the database's file is damaged. Reads all of it. PostgreSQL verifies each page when it reads it."""
    if engine.dialect.name == "postgresql":
        return False
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok")


def byte_position(session: Session, column: InstrumentedAttribute[bytes], value: bytes) -> ColumnElement[int]:
    """Return an expression for the first position of `value` in a binary column: from 1, or 0 if it is not there."""
    locate = func.pg_catalog.position if _is_postgresql(session) else func.instr
    return locate(column, value, type_=Integer)


def _is_postgresql(session: Session | Connection) -> bool:
    connection = session.get_bind() if isinstance(session, Session) else session
    return connection.dialect.name == "postgresql"
