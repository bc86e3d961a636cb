from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.schemas.fields import (
    NUMBER,
    WHOLE_NUMBER,
    CallbackUrl,
    Cursor,
    Day,
    QueryBool,
    Strict,
    Timestamp,
    UtcTimestamp,
    Uuid,
)
from service.store.paging import Position


@pytest.mark.parametrize("text", ["2030-03-31T12:00:00Z", "2030-03-31t14:00:00.0+02:00"])
def test_timestamps_become_utc(text: str) -> None:
    assert TypeAdapter(UtcTimestamp).validate_python(text) == datetime(2030, 3, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "value", ["2030-03-31T12:00:00", "2030-03-31", "1900000000", 1_900_000_000, "2030-02-30T00:00:00Z"]
)
def test_other_spellings_of_a_time_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Timestamp).validate_python(value)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_times_beyond_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="outside the years"):
        TypeAdapter(UtcTimestamp).validate_python(text)


def test_a_day_has_one_spelling() -> None:
    assert TypeAdapter(Day).validate_python("2030-03-31") == date(2030, 3, 31)
    with pytest.raises(ValidationError, match="must be a day"):
        TypeAdapter(Day).validate_python("2030-3-31")


def test_a_cursor_is_accepted_only_as_it_was_issued() -> None:
    cursor = Position(datetime(2030, 3, 31, tzinfo=UTC), uuid.uuid4()).encode()
    assert TypeAdapter(Cursor).validate_python(cursor) == cursor
    for changed in (cursor[:-1], cursor + "A", "ada@example.org"):
        with pytest.raises(ValidationError):
            TypeAdapter(Cursor).validate_python(changed)


@pytest.mark.parametrize(
    "url", ["ftp://host.example/", "mailto:ada@example.org", "https://", "https://a.example/" + "x" * 5000]
)
def test_a_callback_url_is_http_and_not_too_long(url: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(CallbackUrl).validate_python(url)


def test_unknown_fields_are_refused_and_not_repeated() -> None:
    class Body(Strict):
        number: int = 0

    changes: dict[str, Any] = {"number": "ada@example.org", "nmber": 1}
    with pytest.raises(ValidationError) as refused:
        Body.model_validate(changes)
    assert {error["type"] for error in refused.value.errors()} == {"extra_forbidden", "int_type"}
    assert "ada" not in str(refused.value)


@pytest.mark.parametrize("value", ["1", " 7", "007", 1.0, True, "1e2"])
def test_no_number_is_made_of_something_else(value: object) -> None:
    class Body(Strict):
        number: int

    with pytest.raises(ValidationError):
        Body.model_validate({"number": value})


@pytest.mark.parametrize("value", ["yes", "true", 1, 0, "on"])
def test_no_boolean_is_made_of_something_else(value: object) -> None:
    class Body(Strict):
        flag: bool

    with pytest.raises(ValidationError):
        Body.model_validate({"flag": value})


def test_a_uuid_has_one_spelling() -> None:
    name = "0f6c0c4e-6f0c-4c9f-8a35-0c9f8a350c9f"
    assert TypeAdapter(Uuid).validate_python(name) == uuid.UUID(name)
    for other in (name.upper(), f"{{{name}}}", f"urn:uuid:{name}", name.replace("-", ""), f" {name}", 7):
        with pytest.raises(ValidationError):
            TypeAdapter(Uuid).validate_python(other)


def test_text_of_a_query_has_one_spelling() -> None:
    assert TypeAdapter(Annotated[int, WHOLE_NUMBER]).validate_python("50") == 50
    assert TypeAdapter(Annotated[float, NUMBER]).validate_python("1e-2") == 0.01
    assert [TypeAdapter(QueryBool).validate_python(text) for text in ("true", "false")] == [True, False]
    for adapter, text in (
        (Annotated[int, WHOLE_NUMBER], "1_0"),
        (Annotated[int, WHOLE_NUMBER], " 7"),
        (Annotated[float, NUMBER], "nan"),
        (Annotated[float, NUMBER], "1_0"),
        (QueryBool, "1"),
    ):
        with pytest.raises(ValidationError, match="must be"):
            TypeAdapter(adapter).validate_python(text)
