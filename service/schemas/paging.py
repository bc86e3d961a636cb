"""Query parameters and cursors of paged lists."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query

from service.schemas.fields import WHOLE_NUMBER, Cursor
from service.store.paging import Page, Position, Window


def page_window(
    limit: Annotated[int, Query(ge=1, le=200), WHOLE_NUMBER] = 50,
    cursor: Annotated[Cursor | None, Query(description="`next_cursor` of the previous page.")] = None,
) -> Window:
    return Window(limit, Position.decode(cursor) if cursor else None)


WindowQuery = Annotated[Window, Depends(page_window)]


def next_cursor(page: Page[Any]) -> str | None:
    return page.end.encode() if page.end else None
