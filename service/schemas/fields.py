"""Field types that several schemas share."""

from __future__ import annotations

import re
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
    """Base of request bodies. Unknown fields are refused: a misspelt `models` must not delete everywhere."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def spelled(pattern: re.Pattern[str], description: str) -> BeforeValidator:
    """Return a validator that accepts one spelling only.

    Pydantic alone also accepts what others may read differently: seconds since 1970, capital letters, braces.
    """

    def check(value: object) -> object:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"must be {description}")
        return value

    return BeforeValidator(check)


def _to_utc(timestamp: datetime) -> datetime:
    try:
        return timestamp.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


def _check_cursor(cursor: str) -> str:
    return Position.decode(cursor).encode()


RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
Timestamp = Annotated[AwareDatetime, spelled(RFC_3339, "a time with its zone as in RFC 3339")]
UtcTimestamp = Annotated[Timestamp, AfterValidator(_to_utc)]
Day = Annotated[date, spelled(re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), "a day such as 2030-03-31")]
Cursor = Annotated[
    str, StringConstraints(max_length=64), AfterValidator(_check_cursor), Field(json_schema_extra={"format": "cursor"})
]
CallbackUrl = Annotated[str, StringConstraints(max_length=LONGEST_URL, pattern=URL_PATTERN)]
