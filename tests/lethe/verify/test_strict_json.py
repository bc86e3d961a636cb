"""JSON that two readers could understand differently, or that costs more than it says, is rejected."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from lethe.verify.reading import Rejected
from lethe.verify.strict_json import MAX_DEPTH, MAX_VALUES, parse_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": [true, null]}', {"a": 1, "b": [True, None]}),
        ('{"a": 4.0, "b": 4e0, "c": -0, "d": 0.5}', {"a": 4, "b": 4, "c": 0, "d": 0.5}),
        ('{"a": "\\ud83d\\ude00 ☃ [[[["}', {"a": "😀 ☃ [[[["}),
        ('{"a": %s}' % ("1" * 300), {"a": float("1" * 300)}),
    ],
)
def test_strict_json_is_read(text: str, value: Any) -> None:
    parsed = parse_object(text.encode(), "the file")
    assert parsed == value
    assert [type(member) for member in parsed.values()] == [type(member) for member in value.values()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        ("{}".encode("utf-16"), "is not JSON"),
        (b'{"a":"\xed\xa0\x80"}', "is not JSON"),
        (b'{"a":"\\ud800"}', "is not JSON"),
        (b'{"\\udc00":1}', "is not JSON"),
        (b'{"a":1,"a":1}', "has a member twice"),
        (b'{"a":1,"\\u0061":1}', "has a member twice"),
        (b'{"b":{"a":1,"a":2}}', "has a member twice"),
        (b'{"a":NaN}', "holds NaN"),
        (b'{"a":-Infinity}', "holds -Infinity"),
        (b'{"a":1e400}', "number that is too large"),
        (b'{"a":-1e400}', "number that is too large"),
        (b'{"a":%s}' % (b"9" * 5000), "number that is too large"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested too deeply"),
        (b'{"a":[' + b"1," * MAX_VALUES + b"1]}", "too many values"),
        (b'{"a":01}', "is not JSON"),
        (b'{"a":"\n"}', "is not JSON"),
        (b'{"a":1,}', "is not JSON"),
        (b'"' * 10_001, "is not JSON"),
    ],
)
def test_what_can_be_read_in_two_ways_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=f"the file .*{reason}"):
        parse_object(content, "the file")


def test_the_deepest_allowed_nesting_is_read() -> None:
    assert parse_object(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH, "the file")


@pytest.mark.soak
@pytest.mark.parametrize("pattern", [b"[", b"[],", b'{"a":', b'"\\', b"1", b'"', b"{}"])
def test_64_megabytes_are_rejected_in_seconds_and_bounded_memory(pattern: bytes) -> None:
    content = b'{"a":[' + pattern * ((64 << 20) // len(pattern))
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(Rejected):
        parse_object(content, "the file")
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 20
    assert peak < 1 << 30
