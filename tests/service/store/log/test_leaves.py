from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import rfc8785

from service.store.log.leaves import encode_leaf, format_timestamp

AT = datetime(2026, 11, 16, 8, 0, 5, 120, tzinfo=UTC)


def test_a_leaf_is_the_entry_as_canonical_json() -> None:
    assert encode_leaf("deletion.received", "acme", AT, "d-1", {"subjects": ["b", "a"]}) == (
        b'{"action":"deletion.received","actor":"acme","at":"2026-11-16T08:00:05.000120Z","concerns":"d-1",'
        b'"details":{"subjects":["b","a"]}}'
    )


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"text": 'quotes " and \\ and / and \x00\x1f\x7f\b\t\n\f\r', "other": "é€😀\u2028"},
        {"numbers": [0, -1, 2**53 - 1], "nothing": None, "truth": [True, False]},
        {"z": 1, "a": {"y": 1, "b": []}, "B": {}},
        {"epsilon": 1e-9, "old": {"epsilon": 1e21, "whole": 4.0, "inside": [1, 0.1]}},
        {"\ufb33": 1, "😀": 2, "é": 3},
    ],
)
def test_both_encoders_follow_rfc_8785(details: dict[str, Any]) -> None:
    written = encode_leaf("a", "é", AT, "c", details)
    assert written == rfc8785.dumps(json.loads(written))
    assert written == rfc8785.dumps(
        {
            "action": "a",
            "actor": "é",
            "at": format_timestamp(AT),
            "concerns": "c",
            "details": json.loads(json.dumps(details)),
        }
    )


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (AT.replace(microsecond=0), "2026-11-16T08:00:05.000000Z"),
        (AT.replace(microsecond=999_999), "2026-11-16T08:00:05.999999Z"),
        (AT.astimezone(timezone(timedelta(hours=2))), "2026-11-16T08:00:05.000120Z"),
    ],
)
def test_times_always_have_six_digits_and_are_in_utc(at: datetime, written: str) -> None:
    assert format_timestamp(at) == written
