"""The files of a database, read byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import text

from service.store.database import Database


def read_files(database: Database) -> bytes:
    """Return the bytes of a database: of SQLite's file and log, or of all tables on PostgreSQL (not of its log)."""
    if database.engine.dialect.name == "sqlite":
        path = Path(str(database.engine.url.database))
        return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))  # writes what is in memory, and removes the files of rewritten tables
        folder = Path(connection.execute(text("SHOW data_directory")).scalar_one())
        query = "SELECT oid FROM pg_database WHERE datname = current_database()"
        number = connection.execute(text(query)).scalar_one()
    return b"".join(file.read_bytes() for file in (folder / "base" / str(number)).iterdir())


def count_found(content: bytes, values: Iterable[bytes]) -> int:
    return sum(value in content for value in values)
