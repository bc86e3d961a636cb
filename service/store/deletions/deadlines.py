"""Deadlines of deletions under each regulation, set when the request is received.

    gdpr   one calendar month from receipt, extendable by two more (article 12(3))
    ccpa   45 calendar days from receipt, extendable by 45 more (§1798.130(a)(2)(A))

The CCPA also requires confirmation of receipt within 10 business days: the signed receipt is that confirmation.

A month ends on the same day of the next month, or on its last day if that month is shorter. All times are in UTC.
"""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta

from service.store.paging import EPOCH


def due(regulation: str, received_at: datetime) -> datetime:
    return _later(regulation, received_at, periods=1)


def latest(regulation: str, received_at: datetime) -> datetime:
    """Return the latest deadline that an extension may set."""
    return _later(regulation, received_at, periods={"gdpr": 3, "ccpa": 2}[regulation])


def held_until(received_at: datetime, due_at: datetime, window_seconds: float) -> datetime:
    """Return until when a deletion waits for others to share a batch with, and until when its caller can cancel it.

    At least half the window and at most the whole; at most a tenth of the time to its deadline. It ends at a multiple
    of half the window, so that deletions received at about the same time become due at the same time: before, none may
    join a batch, since that would show its caller that a model holds the subject.

    Computed once, at receipt: an extension does not make it wait longer.
    """
    available = max(due_at - received_at, timedelta())
    half = min(timedelta(seconds=window_seconds), available / 10) / 2
    return EPOCH + half * -((EPOCH - received_at - half) // half) if half else received_at


def _later(regulation: str, start: datetime, periods: int) -> datetime:
    return _months_later(start, periods) if regulation == "gdpr" else start + timedelta(days=45 * periods)


def _months_later(start: datetime, months: int) -> datetime:
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last_day = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last_day))
