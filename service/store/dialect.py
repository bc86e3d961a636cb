"""Everything that differs between SQLite and PostgreSQL. No other module asks which database it talks to."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Index,
    Integer,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeDecorator

T = TypeVar("T")

CHUNK_SIZE = 5_000
"""Values in one statement. SQLite binds at most 32,766 parameters, PostgreSQL 65,535; a row binds up to six."""
WRITE_OPTION = "lethe_write"
"""Execution option of connections that write: their SQLite transactions begin as writers."""
SQLITE_BUSY_MILLISECONDS = 30_000
POSTGRESQL_DISK_FULL = "53100"

_LOCK = text("SELECT pg_advisory_xact_lock(hashtext(:name))")
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


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index over the rows that match `where`, on either database."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


def open_engine(url: str) -> Engine:
    """Return an engine for the URL. Nothing is connected yet."""
    return _sqlite_engine(url) if url.startswith("sqlite") else _postgresql_engine(url)


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield the values in lists small enough for one statement."""
    iterator = iter(values)
    while chunk := list(islice(iterator, CHUNK_SIZE)):
        yield chunk


def insert(session: Session, table: type[DeclarativeBase]) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that supports ON CONFLICT."""
    return postgresql.insert(table) if _is_postgresql(session) else sqlite.insert(table)


def server_time(session: Session) -> datetime | None:
    """Return the database server's current time. None on SQLite, which has no server."""
    if not _is_postgresql(session):
        return None
    return session.execute(select(func.clock_timestamp(type_=UtcDateTime()))).scalar_one()


def lock(session: Session | Connection, name: str) -> None:
    """Wait for the lock of this name and hold it until the transaction ends. On SQLite every writer is alone."""
    if _is_postgresql(session):
        session.execute(_LOCK, {"name": name})


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


def byte_position(session: Session, column: InstrumentedAttribute[bytes], value: bytes) -> ColumnElement[int]:
    """Return an expression for the first position of `value` in a binary column: from 1, or 0 if it is not there."""
    locate = func.pg_catalog.position if _is_postgresql(session) else func.instr
    return locate(column, value, type_=Integer)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a driver's error says that the database's disk is full."""
    codes = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    return sqlite3.SQLITE_FULL in codes or POSTGRESQL_DISK_FULL in codes


def _is_postgresql(session: Session | Connection) -> bool:
    connection = session.get_bind() if isinstance(session, Session) else session
    return connection.dialect.name == "postgresql"


def _postgresql_engine(url: str) -> Engine:
    return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args={"connect_timeout": 5})


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        # Switches off the driver's own transaction handling: only _begin below starts transactions.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MILLISECONDS}")
        _use_wal(connection)
        for pragma in (
            "synchronous = FULL",  # 201 means durable, also through a power cut
            "foreign_keys = ON",
            "secure_delete = ON",  # erased identities are overwritten, not only unlinked
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A reader that starts to write fails at once if another transaction wrote meanwhile; BEGIN IMMEDIATE waits.
        writes = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: Any) -> None:
    """Switch to write-ahead logging.

    Retries, because SQLite refuses one of two processes that open a new file at once without waiting.
    """
    deadline = time.monotonic() + SQLITE_BUSY_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
