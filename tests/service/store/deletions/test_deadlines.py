from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.store.deletions.deadlines import due, held_until, latest


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("regulation", "received", "expected"),
    [
        ("gdpr", "2026-11-16T09:30:00", "2026-12-16T09:30:00"),
        ("gdpr", "2026-12-31T23:59:59", "2027-01-31T23:59:59"),
        ("gdpr", "2027-01-31T12:00:00", "2027-02-28T12:00:00"),
        ("gdpr", "2028-01-31T12:00:00", "2028-02-29T12:00:00"),
        ("gdpr", "2028-02-29T12:00:00", "2028-03-29T12:00:00"),
        ("gdpr", "2027-03-31T00:00:00", "2027-04-30T00:00:00"),
        ("ccpa", "2026-11-16T09:30:00", "2026-12-31T09:30:00"),
        ("ccpa", "2028-02-01T00:00:00", "2028-03-17T00:00:00"),
    ],
)
def test_due_dates(regulation: str, received: str, expected: str) -> None:
    assert due(regulation, utc(received)) == utc(expected)


@pytest.mark.parametrize(
    ("regulation", "received", "expected"),
    [
        ("gdpr", "2026-11-30T08:00:00", "2027-02-28T08:00:00"),
        ("gdpr", "2027-01-31T08:00:00", "2027-04-30T08:00:00"),
        ("ccpa", "2026-11-16T08:00:00", "2027-02-14T08:00:00"),
    ],
)
def test_latest_extensions(regulation: str, received: str, expected: str) -> None:
    """Counted from receipt: three months from the end of January are not a month from the end of March."""
    assert latest(regulation, utc(received)) == utc(expected)


@pytest.mark.parametrize(
    ("window", "remaining", "wait"),
    [
        (timedelta(seconds=1), timedelta(days=30), timedelta(seconds=1)),
        (timedelta(hours=12), timedelta(days=30), timedelta(hours=12)),
        (timedelta(days=7), timedelta(days=30), timedelta(days=3)),
        (timedelta(hours=12), timedelta(hours=10), timedelta(hours=1)),
        (timedelta(hours=12), timedelta(0), timedelta(0)),
        (timedelta(hours=12), timedelta(days=-1), timedelta(0)),
        (timedelta(0), timedelta(days=30), timedelta(0)),
    ],
)
def test_a_deletion_waits_at_most_a_tenth_of_its_time(window: timedelta, remaining: timedelta, wait: timedelta) -> None:
    received_at = utc("2026-11-16T09:30:00")
    assert held_until(received_at, received_at + remaining, window.total_seconds()) == received_at + wait
