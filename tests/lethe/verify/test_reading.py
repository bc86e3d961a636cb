"""Members of untrusted JSON: the right type, or a rejection that names the member."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lethe.verify.reading import (
    Rejected,
    decode_base64,
    digest_of,
    hash_at,
    hashes_at,
    list_at,
    number_at,
    object_at,
    parse_object,
    text_at,
    time_at,
    whole_at,
)

HASH = "ab" * 32
GOOD: dict[Callable[[Any, str], Any], tuple[Any, Any]] = {
    object_at: ({"a": 1}, {"a": 1}),
    list_at: ([1], [1]),
    text_at: ("é", "é"),
    number_at: (3, 3.0),
    whole_at: (0, 0),
    time_at: ("2026-11-16T08:00:00Z", datetime(2026, 11, 16, 8, tzinfo=UTC)),
    hash_at: (HASH, bytes.fromhex(HASH)),
    hashes_at: ([HASH], [bytes.fromhex(HASH)]),
}
BAD: list[tuple[Callable[[Any, str], Any], Any]] = [
    (object_at, []),
    (list_at, {}),
    (text_at, 1),
    (text_at, "\ud800"),
    (number_at, "1"),
    (number_at, True),
    (whole_at, 1.0),
    (whole_at, -1),
    (whole_at, True),
    (whole_at, 1 << 62),
    (time_at, "yesterday"),
    (hash_at, HASH.upper()),
    (hash_at, HASH + "\n"),
    (hashes_at, [HASH, 1]),
]


@pytest.mark.parametrize("read", GOOD, ids=lambda read: read.__name__)
def test_a_member_of_the_right_type_is_read(read: Callable[[Any, str], Any]) -> None:
    value, expected = GOOD[read]
    assert read({"member": value}, "member") == expected


@pytest.mark.parametrize(("read", "value"), BAD)
def test_a_member_of_another_type_is_rejected_by_name(read: Callable[[Any, str], Any], value: Any) -> None:
    with pytest.raises(Rejected, match="member"):
        read({"member": value}, "member")


@pytest.mark.parametrize("read", GOOD, ids=lambda read: read.__name__)
def test_a_missing_member_is_rejected_by_name(read: Callable[[Any, str], Any]) -> None:
    with pytest.raises(Rejected, match="member"):
        read({}, "member")


def test_a_time_without_an_offset_is_utc() -> None:
    assert time_at({"at": "2026-11-16T08:00:00"}, "at").tzinfo is UTC


@pytest.mark.parametrize(
    ("content", "reason"), [(b"{", "not JSON"), (b"[]", "not a JSON object"), (b"\xff", "not JSON")]
)
def test_what_is_not_an_object_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=f"the file is {reason}"):
        parse_object(content, "the file")


def test_base64_has_one_spelling() -> None:
    assert decode_base64("YQ==", "root") == b"a"
    for text, reason in (("YQ", "not base64"), ("Y Q==", "not base64"), ("YR==", "canonical base64")):
        with pytest.raises(
            Rejected, match=f"the root is not {reason.removeprefix('not ')}|the root is not in {reason}"
        ):
            decode_base64(text, "root")


@pytest.mark.parametrize("subject", [None, {}, {"digest": {}}, {"digest": {"sha256": HASH.upper()}}])
def test_a_subject_needs_a_sha256(subject: Any) -> None:
    with pytest.raises(Rejected, match="SHA-256"):
        digest_of(subject)
