"""Leaves of the log: the bytes of an audit entry that the log commits to, fixed before the entry has an index."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from service.store.canonical_json import canonical_json


def encode_leaf(action: str, actor: str, at: datetime, concerns: str, details: Mapping[str, Any]) -> bytes:
    """Encode an entry as canonical JSON (RFC 8785), without its id: the database assigns it, and the log an index."""
    entry: dict[str, Any] = {
        "action": action,
        "actor": actor,
        "at": format_timestamp(at),
        "concerns": concerns,
        "details": details,
    }
    return canonical_json(entry)


def format_timestamp(at: datetime) -> str:
    """Format with microseconds always, as both databases store them."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
