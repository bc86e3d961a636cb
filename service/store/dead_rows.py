"""Dead rows in the database's files, whose removal differs between SQLite and PostgreSQL.

SQLite zeroes what is deleted (`secure_delete`), but copies stay in the write-ahead log until it is truncated, and in
pages that were rearranged while the row was alive. PostgreSQL leaves dead rows where they are, and VACUUM frees their
space without overwriting it. So tables of people are rewritten. docs/explanation/erasure.md states what remains.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.store.engines import SQLITE_BUSY_SECONDS
from service.store.tables import ErasureTrace

REWRITE_BYTES = 256 * 2**20
"""Largest table that is rewritten on PostgreSQL, with its indexes: it is locked for a second or two meanwhile."""
REWRITE_ROWS = 50_000
"""Largest table that is rewritten on SQLite: nobody can write for a second meanwhile."""
LOCK_SECONDS = 1.0
"""Time to wait for the lock of a table, during which others may have to wait as well."""
CHECKPOINT_SECONDS = 0.1
"""Time to wait for readers, during which no transaction can write."""

# The transaction that inserted a trace is the one that erased. Its rows are dead for good once no snapshot is older.
_SETTLED = text(
    "NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL "
    "AND pid <> pg_backend_pid() AND age(backend_xmin) >= age(erasure_traces.xmin))"
)


def find_settled(session: Session) -> Sequence[uuid.UUID]:
    """Return the traces of erasures whose dead rows no transaction can see any more."""
    query = select(ErasureTrace.id)
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return session.scalars(query.where(_SETTLED) if is_postgresql else query).all()


def truncate_log(engine: Engine) -> bool:
    """Move SQLite's write-ahead log into its file and empty it. False if a reader prevents it for now."""
    if engine.dialect.name != "sqlite":
        return True
    connection = engine.raw_connection()
    try:
        return _checkpoint(connection.cursor())
    finally:
        connection.close()


def rewrite_tables(engine: Engine, tables: Sequence[str]) -> bool:
    """Rewrite these tables without their dead rows. False if others prevent it for now.

    A table that is too large is vacuumed on PostgreSQL, and left as it is on SQLite.
    """
    try:
        return (
            _rewrite_sqlite(engine, tables) if engine.dialect.name == "sqlite" else _rewrite_postgresql(engine, tables)
        )
    except (OperationalError, sqlite3.OperationalError):  # a lock was not to be had in time
        return False


def _rewrite_postgresql(engine: Engine, tables: Sequence[str]) -> bool:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS}s'"))
            connection.execute(text("SET statement_timeout = 0"))
            for table in tables:
                _vacuum(connection, table)
        finally:
            connection.invalidate()  # its settings must not reach other users of the pool
    return True


def _vacuum(connection: Connection, table: str) -> None:
    size = connection.execute(text("SELECT pg_total_relation_size(:name)"), {"name": table}).scalar_one()
    connection.execute(text(f"VACUUM {'(FULL) ' if size <= REWRITE_BYTES else ''}{table}"))


def _rewrite_sqlite(engine: Engine, tables: Sequence[str]) -> bool:
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(1000 * LOCK_SECONDS)}")
        cursor.execute("PRAGMA foreign_keys = OFF")  # the rows that others refer to come back
        cursor.execute("PRAGMA temp_store = MEMORY")
        for table in tables:
            _copy_rows(cursor, table)
        return _checkpoint(cursor)
    finally:
        connection.invalidate()
        connection.close()


def _copy_rows(cursor: Any, table: str) -> None:
    """Take all rows out of a table, which zeroes its pages, and put them back."""
    cursor.execute("BEGIN IMMEDIATE")
    (rows,) = cursor.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - the name is ours
    if rows <= REWRITE_ROWS:
        cursor.execute(f"CREATE TEMP TABLE copied_rows AS SELECT * FROM {table}")  # noqa: S608
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608
        cursor.execute(f"INSERT INTO {table} SELECT * FROM copied_rows")  # noqa: S608
        cursor.execute("DROP TABLE temp.copied_rows")
    cursor.execute("COMMIT")


def _checkpoint(cursor: Any) -> bool:
    cursor.execute(f"PRAGMA busy_timeout = {int(1000 * CHECKPOINT_SECONDS)}")
    (is_blocked, _, _) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    cursor.execute(f"PRAGMA busy_timeout = {int(1000 * SQLITE_BUSY_SECONDS)}")
    return not is_blocked
