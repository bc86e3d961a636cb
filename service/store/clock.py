"""The database's clock: the one clock by which everything is dated that is signed, logged or compared with that."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.dialect import CLOCK


def current_time(session: Session) -> datetime:
    """Return the database's time, so that processes whose clocks differ agree on what came first.

    It is read anew each time: a transaction that waited for a lock must not use the time from before. SQLite runs on
    one host and uses that host's clock.
    """
    return session.execute(select(CLOCK)).scalar_one()
