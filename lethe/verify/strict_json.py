"""JSON of untrusted files, read so that all readers agree: what could be read in two ways is rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .reading import Rejected

MAX_DEPTH = 64
MAX_VALUES = 1 << 21
"""Limit of commas and opening brackets outside strings. It bounds the memory that a file can take."""
LARGEST_WHOLE = (1 << 53) - 1
STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string, or the rest of the text after a quotation mark that is never closed: the search takes linear time."""
BRACKET = re.compile(r"[\[\]{}]")


def parse_object(content: bytes, description: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises Rejected, whatever the bytes are.

    Numbers are doubles, as in JavaScript: 4, 4.0 and 4e0 are the same number.
    """
    try:
        text = content.decode()
        _check_structure(text)
        value = json.loads(
            text,
            object_pairs_hook=_make_object,
            parse_int=_read_number,
            parse_float=_read_number,
            parse_constant=_refuse_constant,
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails at half of a surrogate pair
    except Rejected as reason:
        raise Rejected(f"{description} {reason}") from None
    except ValueError:
        raise Rejected(f"{description} is not JSON") from None
    if not isinstance(value, dict):
        raise Rejected(f"{description} is not a JSON object")
    return value


def _check_structure(text: str) -> None:
    """Bound depth and number of values before anything is built. Text that is not JSON may pass."""
    structure, strings = STRING.subn("", text, count=2 * MAX_VALUES)
    if strings == 2 * MAX_VALUES or sum(structure.count(mark) for mark in ",[{") > MAX_VALUES:
        raise Rejected("holds too many values")
    depth = 0
    for bracket in BRACKET.findall(structure):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise Rejected("is nested too deeply")


def _make_object(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        raise Rejected("has a member twice")
    return value


def _read_number(text: str) -> int | float:
    number = float(text)
    if number - number != 0:
        raise Rejected("holds a number that is too large")
    return int(number) if number.is_integer() and abs(number) <= LARGEST_WHOLE else number


def _refuse_constant(name: str) -> NoReturn:
    raise Rejected(f"holds {name}, which is not JSON")
