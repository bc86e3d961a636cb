"""Sessions on the database: one engine, read and write transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.store.engines import WRITE_OPTION, open_engine


class Database:
    """Source of sessions. Code that uses one never commits; leaving the `with` block does."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.write_engine = self.engine.execution_options(**{WRITE_OPTION: True})

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session that only reads."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a write transaction: committed when the block ends, rolled back if it raises."""
        with Session(self.write_engine, expire_on_commit=False) as session, session.begin():
            yield session

    def ping(self) -> None:
        """Raise unless the database answers."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()
