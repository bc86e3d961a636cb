"""Keyset pagination: newest first, with a cursor for the end of the last page."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar, TypeVarTuple

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CURSOR = struct.Struct(">q16s")

T = TypeVar("T")
Columns = TypeVarTuple("Columns")


@dataclass(frozen=True)
class Position:
    """End of a page. Neither value of a row ever changes, so that pages neither repeat nor skip rows."""

    timestamp: datetime
    id: uuid.UUID

    def encode(self) -> str:
        microseconds = (self.timestamp - EPOCH) // timedelta(microseconds=1)
        return base64.urlsafe_b64encode(CURSOR.pack(microseconds, self.id.bytes)).decode()

    @classmethod
    def decode(cls, cursor: str) -> Position:
        """Decode a cursor. Raise ValueError unless `encode` could have made it."""
        try:
            microseconds, identifier = CURSOR.unpack(base64.b64decode(cursor, altchars=b"-_", validate=True))
            return cls(EPOCH + timedelta(microseconds=microseconds), uuid.UUID(bytes=identifier))
        except (ValueError, struct.error, OverflowError):
            raise ValueError("invalid cursor; send `next_cursor` of the previous page, unchanged") from None


@dataclass(frozen=True)
class Window:
    """Requested part of a list: up to `limit` rows, starting after the previous page."""

    limit: int
    after: Position | None = None


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list. `end` is the position after which the next page starts, None on the last page."""

    items: Sequence[T]
    end: Position | None


def newest_first(
    query: Select[*Columns],
    timestamp: InstrumentedAttribute[datetime],
    identifier: InstrumentedAttribute[uuid.UUID],
    window: Window,
) -> Select[*Columns]:
    """Limit the query to a page and one more row. Costs the same for every page; new rows do not shift pages."""
    if window.after is not None:
        query = query.where(tuple_(timestamp, identifier) < (window.after.timestamp, window.after.id))
    return query.order_by(timestamp.desc(), identifier.desc()).limit(window.limit + 1)


def make_page(rows: Sequence[T], window: Window, position: Callable[[T], Position]) -> Page[T]:
    """Make a page of the rows of `newest_first`. The extra row only shows that there is a next page."""
    items = rows[: window.limit]
    return Page(items, position(items[-1]) if len(rows) > window.limit else None)
