"""Sessions on the database: one engine, read and write transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.store.database_errors import is_damaged, is_disk_full
from service.store.dialect import has_damage
from service.store.engines import WRITE_OPTION, open_engine

log = structlog.get_logger("database")


class Database:
    """Source of sessions. Code that uses one never commits; leaving the `with` block does."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.write_engine = self.engine.execution_options(**{WRITE_OPTION: True})
        self.is_full = False
        """Whether the disk was full at the last attempt to write."""
        self.is_damaged = False
        """Whether a statement or the last examination found damage."""

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session that only reads."""
        with self._noting_faults(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a write transaction: committed when the block ends, rolled back if it raises."""
        with self._noting_faults(), Session(self.write_engine, expire_on_commit=False) as session, session.begin():
            yield session
        self.is_full = False

    def ping(self) -> None:
        """Raise unless the database answers."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def touch(self) -> None:
        """Write something that changes nothing. Raise unless that is possible."""
        with self.writing() as session:
            session.execute(text("UPDATE alembic_version SET version_num = version_num"))

    def examine(self) -> None:
        """Search the whole database for damage and note the result. May take minutes."""
        try:
            self.is_damaged = has_damage(self.engine)
        except DBAPIError as error:
            self.is_damaged = is_damaged(error.orig)
        if self.is_damaged:
            log.critical("database.damaged")

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            self.is_full = self.is_full or is_disk_full(error.orig)
            self.is_damaged = self.is_damaged or is_damaged(error.orig)
            raise
