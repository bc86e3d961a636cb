"""The clock that leases and waiting times are judged by."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from service.store.dialect import server_time
from service.store.tables import now


def current_time(session: Session) -> datetime:
    """Return the database's time, so that workers whose clocks differ agree on which lease is alive.

    SQLite runs on one host and uses that host's clock.
    """
    return server_time(session) or now()
