"""Canonical JSON (RFC 8785): one spelling for everything that is hashed or signed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785

_LARGEST_INTEGER = (1 << 53) - 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of plain values. Raises ValueError for what RFC 8785 cannot write."""
    # Python's own encoder writes the same bytes for such values, ten times as fast.
    return _ENCODER.encode(value).encode() if _is_simple(value) else rfc8785.dumps(value)


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Return the canonical JSON of an object whose members are canonical JSON already and whose keys are ASCII words.

    Statements of a batch share most of their members: these are written once.
    """
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), members[name]) for name in sorted(members))


def _is_simple(value: Any) -> bool:
    """Return whether there is no fraction, no integer beyond 2^53 and no key that RFC 8785 might sort differently."""
    if isinstance(value, str) or value is None:
        return True
    if isinstance(value, dict):
        return all(map(str.isascii, value)) and _are_simple(value.values())
    if isinstance(value, list | tuple):
        return _are_simple(value)
    return isinstance(value, int) and -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER


def _are_simple(values: Iterable[Any]) -> bool:
    # Most values are text: a call for each would take longer than encoding it.
    return all(type(value) is str or _is_simple(value) for value in values)
