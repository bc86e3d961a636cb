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
    text_at,
    texts_at,
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
    (number_at, "1"),
    (number_at, True),
    (whole_at, 1.0),
    (whole_at, -1),
    (whole_at, True),
    (whole_at, 1 << 53),
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


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-16T08:00:00",
        "2026-11-16 08:00:00Z",
        "2026-11-16",
        "20261116T080000Z",
        "2026-W47-1T08:00:00Z",
        "2026-11-16T08:00:00,5Z",
        "2026-11-16T08:00:00.1234567Z",
        "2026-13-16T08:00:00Z",
        "2026-11-16T24:00:00Z",
        "2026-11-16T08:00:60Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-11-16T08:00:00+24:00",
        "2026-11-16T08:00:00+01:60",
        "2026-11-16T08:60:00Z",
        "２026-11-16T08:00:00Z",
    ],
)
def test_a_time_has_one_form(text: str) -> None:
    with pytest.raises(Rejected, match="at is not a time"):
        time_at({"at": text}, "at")


def test_a_time_with_another_offset_is_the_same_in_utc() -> None:
    assert time_at({"at": "2026-11-16T09:30:00.25+01:30"}, "at") == datetime(2026, 11, 16, 8, 0, 0, 250_000, tzinfo=UTC)


def test_a_list_of_texts_may_be_absent() -> None:
    assert texts_at({}, "sentences") == []
    assert texts_at({"sentences": ["a"]}, "sentences") == ["a"]
    for value in (None, "a", [1], [["a"]]):
        with pytest.raises(Rejected, match="sentences is missing"):
            texts_at({"sentences": value}, "sentences")


def test_base64_has_one_spelling() -> None:
    assert decode_base64("YQ==", "root") == b"a"
    for text, reason in (("YQ", "not base64"), ("Y Q==", "not base64"), ("YR==", "canonical base64")):
        with pytest.raises(
            Rejected, match=f"the root is not {reason.removeprefix('not ')}|the root is not in {reason}"
        ):
            decode_base64(text, "root")


@pytest.mark.parametrize("subject", [None, {}, {"digest": {}}, {"digest": []}, {"digest": {"sha256": HASH.upper()}}])
def test_a_subject_needs_a_sha256(subject: Any) -> None:
    with pytest.raises(Rejected, match="SHA-256"):
        digest_of(subject)
