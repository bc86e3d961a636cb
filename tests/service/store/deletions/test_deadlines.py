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
    ("window", "remaining", "longest"),
    [
        (timedelta(seconds=1), timedelta(days=30), timedelta(seconds=1)),
        (timedelta(hours=12), timedelta(days=30), timedelta(hours=12)),
        (timedelta(days=7), timedelta(days=30), timedelta(days=3)),
        (timedelta(hours=12), timedelta(hours=10), timedelta(hours=1)),
    ],
)
def test_a_deletion_waits_for_half_a_window_or_longer(
    window: timedelta, remaining: timedelta, longest: timedelta
) -> None:
    """And at most a tenth of the time to its deadline. Those received within half a window are due together."""
    start, ends = utc("2026-11-16T00:00:00"), set()
    for step in range(100):
        received_at = start + longest / 100 * step
        until = held_until(received_at, received_at + remaining, window.total_seconds())
        assert longest / 2 <= until - received_at <= longest
        ends.add(until)
    assert len(ends) in (2, 3)


@pytest.mark.parametrize(
    ("window", "remaining"),
    [(43200.0, timedelta(0)), (43200.0, timedelta(days=-1)), (0.0, timedelta(days=30)), (1e-7, timedelta(days=30))],
)
def test_without_a_window_or_time_nothing_waits(window: float, remaining: timedelta) -> None:
    received_at = utc("2026-11-16T09:30:00")
    assert held_until(received_at, received_at + remaining, window) == received_at
