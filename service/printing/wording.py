"""Wording of numbers, times and technical names, the same everywhere in a document."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from vocabulary.levels import CertifiedLevel
from vocabulary.references import Reference
from vocabulary.rungs import RungName

LEVELS: Mapping[CertifiedLevel, str] = {
    "proved": "every condition of the bound was checked, including rounding",
    "estimated": "what is left was estimated; epsilon is the upper end of an interval. This is not a proof",
    "retrained": "the model was trained from scratch without the records; there is nothing to bound",
}
RUNGS: Mapping[RungName, str] = {
    "influence": "influence step: removes the effect of the records to first order",
    "newton": "Newton steps: refine the result on the remaining records",
    "reweight": "reweighting: divides the records' likelihood out of the weights of the draws",
    "temper": "tempering: reweights in several stages, and moves the draws on the remaining records between them",
    "warm": "warm restart: continues training on the remaining records",
    "retrain": "retraining: trains from scratch on the remaining records",
}
REFERENCES: Mapping[Reference, str] = {
    "posterior": "the posterior given the remaining records",
    "stored draws": "the stored draws (weaker promise)",
}
REGULATIONS = {
    "gdpr": "GDPR: General Data Protection Regulation of the European Union",
    "ccpa": "CCPA: California Consumer Privacy Act",
}
DASH = "–"
"""Printed where there is no value."""
_LARGEST_COUNT = 1e15


def format_number(value: Any) -> str:
    """Format counts in full, other numbers with four digits, and null as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < _LARGEST_COUNT else f"{value:.4g}"
    return DASH if value is None else show_hidden(str(value))


def bound_noun(level: CertifiedLevel) -> str:
    """Return what to call epsilon: an estimate must not pass for a bound."""
    return "estimate" if level == "estimated" else "bound"


def format_nats(value: float | None) -> str:
    """Format as the verifier does, so that the two can be compared."""
    return DASH if value is None else f"{value:.3e} nats" if value else "0 nats"


def format_percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.3g} %"


def format_seconds(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.1f} s"


def format_count(count: int, singular: str, plural: str) -> str:
    return f"1 {singular}" if count == 1 else f"{count:,} {plural}"


def format_time(time: datetime) -> str:
    """Format to the second, in UTC: 17 November 2026, 02:44:43 UTC."""
    utc = time.astimezone(UTC)
    return f"{utc.day} {utc:%B %Y, %H:%M:%S} UTC"


def describe_deadline(issued_at: datetime, due_at: datetime) -> str:
    if due_at < issued_at:
        return f"missed: certified {_format_span(issued_at - due_at)} after it was due"
    return f"met: certified {_format_span(due_at - issued_at)} before it was due"


def show_hidden(text: str) -> str:
    """Replace control characters, and marks that change the writing direction, by their numbers: no text can hide."""
    return "".join(f"[U+{ord(mark):04X}]" if unicodedata.category(mark) in _HIDDEN else mark for mark in text)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings on one line, sorted by name."""
    items = (f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(settings.items()))
    return show_hidden(", ".join(items))


def shorten(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def _format_span(span: timedelta) -> str:
    hours = span.seconds // 3600
    return format_count(span.days, "day", "days") if span.days else format_count(hours, "hour", "hours")
