"""Dead rows in the database's files, whose removal differs between SQLite and PostgreSQL.

SQLite zeroes what is deleted (`secure_delete`), but copies of old pages stay in the write-ahead log until it is
truncated. PostgreSQL leaves dead rows where they are. VACUUM frees their space without overwriting it, so small tables
are rewritten, which takes their old files away. docs/explanation/erasure.md states what remains.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.store.engines import SQLITE_BUSY_SECONDS
from service.store.tables import ErasureTrace

REWRITE_BYTES = 256 * 2**20
"""Largest table that is rewritten, with its indexes: it is locked for a second or two meanwhile."""
LOCK_SECONDS = 1.0
"""Time to wait for the lock of a table, during which all others wait as well."""
CHECKPOINT_SECONDS = 0.1
"""Time to wait for readers, during which no transaction can write."""

# The transaction that inserted a trace is the one that erased. Rows are dead for good once no snapshot is older.
_SETTLED = text(
    "NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL "
    "AND pid <> pg_backend_pid() AND age(backend_xmin) >= age(erasure_traces.xmin))"
)


def find_settled(session: Session) -> Sequence[uuid.UUID]:
    """Return the traces of erasures whose dead rows no transaction can see any more."""
    query = select(ErasureTrace.id)
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return session.scalars(query.where(_SETTLED) if is_postgresql else query).all()


def clear_dead_rows(engine: Engine, tables: Sequence[str]) -> bool:
    """Remove dead rows of these tables from the database's files. False if others prevent it for now."""
    if engine.dialect.name == "sqlite":
        return _truncate_log(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            for table in tables:
                _rewrite(connection, table)
        except OperationalError:  # the lock was not to be had in time
            return False
        finally:
            connection.invalidate()  # its settings must not reach other users of the pool
    return True


def _truncate_log(engine: Engine) -> bool:
    """Move SQLite's write-ahead log into the database file and empty it."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(1000 * CHECKPOINT_SECONDS)}")
        (is_blocked, _, _) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {int(1000 * SQLITE_BUSY_SECONDS)}")
    finally:
        connection.close()
    return not is_blocked


def _rewrite(connection: Connection, table: str) -> None:
    size = connection.execute(text("SELECT pg_total_relation_size(:name)"), {"name": table}).scalar_one()
    connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS}s'"))
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"VACUUM {'(FULL) ' if size <= REWRITE_BYTES else ''}{table}"))
