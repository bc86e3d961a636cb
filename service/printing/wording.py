"""How numbers, times and technical names are put, the same in every place of a document."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

LEVELS = {
    "proved": "every condition of the bound was checked, rounding included",
    "estimated": "what is left was estimated, with an interval; epsilon is its upper end. This is no proof",
    "retrained": "the model was trained from scratch without the records: there is nothing to bound",
    "none": "a condition failed; no bound is stated",
}
RUNGS = {
    "influence": "influence step: what the records pulled is taken back, to first order",
    "newton": "Newton steps: refined on the records that remain",
    "warm": "warm restart: training goes on, on the records that remain",
    "retrain": "retraining: from scratch, on the records that remain",
}
REGULATIONS = {
    "gdpr": "GDPR: General Data Protection Regulation of the European Union",
    "ccpa": "CCPA: California Consumer Privacy Act",
}
NOTHING = "–"
_LONGEST_COUNT = 1e15


def number(value: Any) -> str:
    """Counts in full, other numbers with four digits; what JSON had no number for as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < _LONGEST_COUNT else f"{value:.4g}"
    return NOTHING if value is None else visible(str(value))


def stated_as(level: str) -> str:
    """What epsilon is to be called: an estimate shall not pass for a bound."""
    return "estimate" if level == "estimated" else "bound"


def nats(value: float | None) -> str:
    """As the verifier writes bounds, so that both can be laid side by side."""
    return NOTHING if value is None else f"{value:.3e} nats" if value else "0 nats"


def share(value: float | None) -> str:
    """Of one, as a percentage."""
    return NOTHING if value is None else f"{100 * value:.3g} %"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.1f} s"


def counted(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def moment(text: str | None) -> str:
    """To the second, in UTC: 17 November 2026, 02:44:43 UTC."""
    if text is None:
        return NOTHING
    at = datetime.fromisoformat(text).astimezone(UTC)
    return f"{at.day} {at:%B %Y, %H:%M:%S} UTC"


def deadline(issued_at: str, due_at: str) -> str:
    left = datetime.fromisoformat(due_at) - datetime.fromisoformat(issued_at)
    if left < timedelta():
        return f"missed: certified {_length(-left)} after it was due"
    return f"met: certified {_length(left)} before it was due"


def visible(text: str) -> str:
    """Controls, and marks that turn the direction of writing, by their numbers: nobody shall hide behind them."""
    return "".join(f"[U+{ord(mark):04X}]" if unicodedata.category(mark) in _HIDDEN else mark for mark in text)


def plain_json(value: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return visible(", ".join(f"{name} {json.dumps(item, ensure_ascii=False)}" for name, item in sorted(value.items())))


def shortened(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def _length(span: timedelta) -> str:
    hours = span.seconds // 3600
    return counted(span.days, "day", "days") if span.days else counted(hours, "hour", "hours")
