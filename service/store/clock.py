"""The clock by which leases and waiting times are judged."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.store.tables import UtcDateTime, now


def clock(session: Session) -> datetime:
    """The database's own time, so that workers whose clocks differ agree on which lease is alive.

    SQLite lives on one host, and has that host's clock.
    """
    if session.get_bind().dialect.name == "postgresql":
        return session.execute(select(func.clock_timestamp(type_=UtcDateTime()))).scalar_one()
    return now()
