"""How lists are cut into pages: newest first, by keyset, with a cursor that says where the last page ended."""

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
    """Where a page ended. Neither value of a row ever changes, so that pages neither repeat nor skip one."""

    moment: datetime
    id: uuid.UUID

    def encode(self) -> str:
        microseconds = (self.moment - EPOCH) // timedelta(microseconds=1)
        return base64.urlsafe_b64encode(CURSOR.pack(microseconds, self.id.bytes)).decode()

    @classmethod
    def decode(cls, cursor: str) -> Position:
        """Raise ValueError unless `encode` could have made it."""
        try:
            microseconds, identifier = CURSOR.unpack(base64.b64decode(cursor, altchars=b"-_", validate=True))
            return cls(EPOCH + timedelta(microseconds=microseconds), uuid.UUID(bytes=identifier))
        except (ValueError, struct.error, OverflowError):
            raise ValueError("not a cursor of ours; send `next_cursor` of the page before, unchanged") from None


@dataclass(frozen=True)
class Window:
    """Which part of a list is wanted: so many rows, from where the page before ended."""

    limit: int
    after: Position | None = None


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list. `end` is where the next page goes on, None on the last one."""

    items: Sequence[T]
    end: Position | None


def newest_first(
    query: Select[*Columns],
    moment: InstrumentedAttribute[datetime],
    identifier: InstrumentedAttribute[uuid.UUID],
    window: Window,
) -> Select[*Columns]:
    """A keyset page and one row more: costs the same wherever it is, and rows that arrive meanwhile shift nothing."""
    if window.after is not None:
        query = query.where(tuple_(moment, identifier) < (window.after.moment, window.after.id))
    return query.order_by(moment.desc(), identifier.desc()).limit(window.limit + 1)


def cut(rows: Sequence[T], window: Window, position: Callable[[T], Position]) -> Page[T]:
    """Take off the row that only told that there is a next page."""
    items = rows[: window.limit]
    return Page(items, position(items[-1]) if len(rows) > window.limit else None)
