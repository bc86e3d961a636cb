from __future__ import annotations

from datetime import datetime

import pytest

from service.printing.wording import (
    describe_deadline,
    format_nats,
    format_number,
    format_percent,
    format_seconds,
    format_settings,
    format_time,
    shorten,
    show_hidden,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [(2000, "2,000"), (262.5520845, "262.6"), (0.0001294893, "0.0001295"), (1e300, "1e+300"), (2000.0, "2,000"),
     (None, "–"), (True, "yes"), ("a\x07b", "a[U+0007]b")],
)  # fmt: skip
def test_numbers(value: object, written: str) -> None:
    assert format_number(value) == written


def test_units() -> None:
    assert [format_nats(0), format_nats(7.7337e-7), format_nats(None)] == ["0 nats", "7.734e-07 nats", "–"]
    assert [format_percent(0.31), format_percent(None)] == ["31 %", "–"]
    assert [format_seconds(0.0145), format_seconds(12), format_seconds(None)] == ["14.5 ms", "12.0 s", "–"]
    assert format_settings({"b": 2, "a": [1]}) == "a [1], b 2"
    assert shorten("x" * 61) == "x" * 59 + "…"


def test_times_are_printed_in_utc() -> None:
    assert format_time(datetime.fromisoformat("2026-11-17T02:44:43.197Z")) == "17 November 2026, 02:44:43 UTC"
    assert format_time(datetime.fromisoformat("2026-11-17T01:44:43+02:00")) == "16 November 2026, 23:44:43 UTC"


@pytest.mark.parametrize(
    ("due", "description"),
    [
        ("2026-12-17T12:00:00Z", "met: certified 30 days before it was due"),
        ("2026-11-18T12:00:00Z", "met: certified 1 day before it was due"),
        ("2026-11-17T14:59:00Z", "met: certified 2 hours before it was due"),
        ("2026-11-17T12:00:00Z", "met: certified 0 hours before it was due"),
        ("2026-11-15T12:00:00Z", "missed: certified 2 days after it was due"),
    ],
)
def test_a_deadline_is_met_or_missed(due: str, description: str) -> None:
    issued_at = datetime.fromisoformat("2026-11-17T12:00:00Z")
    assert describe_deadline(issued_at, datetime.fromisoformat(due)) == description


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\x00", "\u2028", "\ud800", "\ue000"])
def test_nothing_hides_or_turns_the_text(hidden: str) -> None:
    assert show_hidden(f"a{hidden}b") == f"a[U+{ord(hidden):04X}]b"
