"""Traces of erasures in the database's files. The sweep removes them soon after."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.store.database import Database
from service.store.dead_rows import find_settled, rewrite_tables, truncate_log
from service.store.dialect import chunks
from service.store.tables import ErasureTrace, RequestBody, Subject

TABLES = (Subject.__tablename__, RequestBody.__tablename__)
"""Tables whose rows lead to a person. All others hold commitments and random ids."""
REWRITE_SECONDS = 60.0
"""Shortest time between two rewrites of the tables."""


def add_trace(session: Session) -> None:
    """Note that this transaction erases rows, whose content stays in the files for now."""
    session.add(ErasureTrace())


@dataclass
class TraceClearer:
    """Removes traces from the files: from SQLite's log at once, from the tables at most once a minute."""

    database: Database
    _rewritten_at: float = -math.inf

    def clear(self) -> int:
        """Return the number of erasures whose traces were removed. What others prevent is left to the next call."""
        with self.database.reading() as session:
            ids = find_settled(session)
        if not ids:
            return 0
        if time.monotonic() < self._rewritten_at + REWRITE_SECONDS:
            truncate_log(self.database.engine)
            return 0
        self._rewritten_at = time.monotonic()
        if not rewrite_tables(self.database.engine, TABLES):
            return 0
        with self.database.writing() as session:
            for chunk in chunks(ids):
                session.execute(delete(ErasureTrace).where(ErasureTrace.id.in_(chunk)))
        return len(ids)
