from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from vocabulary.signed_model import Count, Earlier, Flag, OrderedModel, Real, Sha256, SignedModel, Timestamp


class Part(SignedModel):
    number: Real | None
    note: str | Earlier = None


class Ordered(OrderedModel):
    after: list[Count]
    before: str


def test_absent_members_stay_absent_and_null_stays_null() -> None:
    assert Part.model_validate({"number": None}).to_dict() == {"number": None}
    assert Part.model_validate({"number": 1, "note": "x"}).to_dict() == {"number": 1.0, "note": "x"}


def test_unknown_members_are_ignored_and_parts_cannot_be_changed() -> None:
    part = Part.model_validate({"number": 1, "more": 2})
    assert part.to_dict() == {"number": 1.0}
    with pytest.raises(ValidationError):
        part.number = 2.0  # type: ignore[misc]


def test_an_ordered_model_writes_canonical_json() -> None:
    assert Ordered(before="é\n", after=[1, 2]).to_canonical_json() == '{"after":[1,2],"before":"é\\n"}'.encode()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Real, "1.5"),
        (Real, True),
        (Real, float("nan")),
        (Real, float("inf")),
        (Count, -1),
        (Count, 1.0),
        (Count, True),
        (Flag, 1),
        (Sha256, "A" * 64),
        (Sha256, "a" * 63),
        (Sha256, "a" * 64 + "\n"),
        (Timestamp, 1763366400),
        (Timestamp, "yesterday"),
    ],
)
def test_values_of_another_type_are_refused(kind: Any, value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


def test_times_are_written_in_utc_with_milliseconds() -> None:
    adapter: TypeAdapter[datetime] = TypeAdapter(Timestamp)
    east = datetime(2026, 11, 17, 4, 0, 0, 197_999, tzinfo=timezone(timedelta(hours=2)))
    assert adapter.dump_python(east) == "2026-11-17T02:00:00.197Z"
    assert adapter.validate_python("2026-11-17T02:00:00.197Z") == datetime(2026, 11, 17, 2, 0, 0, 197_000, tzinfo=UTC)
    assert adapter.validate_python("2026-11-17T02:00:00").tzinfo is UTC
