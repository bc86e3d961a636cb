"""Field types that several schemas share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from service.settings.callback_targets import LONGEST_URL, URL_PATTERN
from service.store.paging import Position


class Strict(BaseModel):
    """Base of request bodies and queries. Unknown fields are refused: a misspelt `models` must not delete everywhere.

    Nothing is converted: `"1"` is no number, and 1 is not true.
    """

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


def spelled(pattern: re.Pattern[str], description: str) -> BeforeValidator:
    """Return a validator that accepts one spelling only.

    Pydantic alone also accepts what others may read differently: seconds since 1970, capital letters, braces.
    """

    def check(value: object) -> object:
        if isinstance(value, uuid.UUID | date):  # from our own code: JSON and queries have no such values
            return value
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"must be {description}")
        return value

    return BeforeValidator(check)


def parsed(pattern: re.Pattern[str], description: str, parse: Callable[[str], object]) -> BeforeValidator:
    """Return a validator of text in a query, with one spelling only. Pydantic alone accepts " 7", "1_0" and "yes"."""

    def convert(value: object) -> object:
        if not isinstance(value, str):
            return value
        if not pattern.fullmatch(value):
            raise ValueError(f"must be {description}")
        return parse(value)

    return BeforeValidator(convert)


def _to_utc(timestamp: datetime) -> datetime:
    try:
        return timestamp.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


def _check_cursor(cursor: str) -> str:
    return Position.decode(cursor).encode()


IS_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# Only the text that `spelled` has checked is converted.
CONVERTED = Field(strict=False)
Uuid = Annotated[uuid.UUID, spelled(IS_UUID, "a UUID in lower case with hyphens"), CONVERTED]
# For queries: the last of a field's annotations, so that its limits stay in the schema.
WHOLE_NUMBER = parsed(re.compile(r"0|[1-9]\d{0,18}", re.ASCII), "a whole number such as 50", int)
NUMBER = parsed(re.compile(r"(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII), "a number such as 0.01", float)
QueryBool = Annotated[bool, parsed(re.compile("true|false"), "true or false", "true".__eq__)]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
Timestamp = Annotated[AwareDatetime, spelled(RFC_3339, "a time with its zone as in RFC 3339"), CONVERTED]
UtcTimestamp = Annotated[Timestamp, AfterValidator(_to_utc)]
Day = Annotated[date, spelled(re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), "a day such as 2030-03-31"), CONVERTED]
Cursor = Annotated[
    str, StringConstraints(max_length=64), AfterValidator(_check_cursor), Field(json_schema_extra={"format": "cursor"})
]
CallbackUrl = Annotated[str, StringConstraints(max_length=LONGEST_URL, pattern=URL_PATTERN)]
