from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from service.store.canonical_json import canonical_json, canonical_object

SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.floats(-1e300, 1e300)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(JSON)
def test_both_encoders_write_the_bytes_of_rfc_8785(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


def test_the_example_of_rfc_8785() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27],
        "string": '€$\x0f\nA\'B"\\\\"/',
        "literals": [None],
    }
    expected = (
        '{"literals":[null],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(value).decode() == expected


def test_keys_beyond_the_basic_plane_sort_by_utf_16() -> None:
    value = {"\ufb33": 1, "\U0001f600": 2, "a": 3}
    assert list(json.loads(canonical_json(value))) == ["a", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), float("inf"), {"a": [2**60]}, "\ud800"])
def test_what_json_cannot_carry_exactly_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the encoder's own words)
        canonical_json(value)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), JSON, max_size=4))
def test_an_object_of_written_members_is_the_same_bytes(value: dict[str, Any]) -> None:
    assert canonical_object({name: canonical_json(item) for name, item in value.items()}) == canonical_json(value)
