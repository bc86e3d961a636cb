"""By when a deletion must be done, as each regulation counts: frozen on the request when it is received.

    gdpr   one calendar month from receipt, extendable by two more (article 12(3))
    ccpa   45 calendar days from receipt, extendable by 45 more (§1798.130(a)(2)(A))

The CCPA also wants receipt confirmed within 10 business days: the signed receipt is that confirmation, given at once.

A month ends on the same day of the next month, or on its last day where that month is shorter. All in UTC.
"""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta


def due(regulation: str, received_at: datetime) -> datetime:
    return _later(regulation, received_at, periods=1)


def latest(regulation: str, received_at: datetime) -> datetime:
    """As far as an extension may go."""
    return _later(regulation, received_at, periods={"gdpr": 3, "ccpa": 2}[regulation])


def held_until(received_at: datetime, due_at: datetime, window_seconds: float) -> datetime:
    """How long a deletion may wait for others to share a batch with: at most a tenth of the time that it has.

    An extension does not make it wait longer: this is counted once, at receipt.
    """
    left = max(due_at - received_at, timedelta())
    return received_at + min(timedelta(seconds=window_seconds), left / 10)


def _later(regulation: str, moment: datetime, periods: int) -> datetime:
    return _months_later(moment, periods) if regulation == "gdpr" else moment + timedelta(days=45 * periods)


def _months_later(moment: datetime, months: int) -> datetime:
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return moment.replace(year=year, month=month + 1, day=min(moment.day, last))
