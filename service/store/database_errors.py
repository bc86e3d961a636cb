"""What a database driver's error means, for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3

PRIMARY_CODE = 0xFF
"""Mask of SQLite's primary result code. The other bits detail it."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the database's disk is full."""
    return _has_code(error, sqlite={sqlite3.SQLITE_FULL}, postgresql={"53100"})


def is_damaged(error: BaseException | None) -> bool:
    """Whether the database's files are damaged: a page with a wrong checksum, or no database at all."""
    sqlite = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    return _has_code(error, sqlite, postgresql={"XX001", "XX002"})


def is_lock_timeout(error: BaseException | None) -> bool:
    """Whether a lock was not free within the time limit."""
    return _has_code(error, sqlite={sqlite3.SQLITE_BUSY}, postgresql={"55P03"})


def is_row_held(error: BaseException | None) -> bool:
    """Whether another transaction holds a row that this one needs. On SQLite, writers wait for the whole file."""
    return _has_code(error, sqlite=set(), postgresql={"55P03"})


def _has_code(error: BaseException | None, sqlite: set[int], postgresql: set[str]) -> bool:
    code, state = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    return (code is not None and code & PRIMARY_CODE in sqlite) or state in postgresql
