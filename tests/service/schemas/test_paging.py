from __future__ import annotations

import uuid
from datetime import UTC, datetime

from service.schemas.paging import next_cursor, page_window
from service.store.paging import Page, Position, Window

POSITION = Position(datetime(2030, 3, 31, tzinfo=UTC), uuid.uuid4())


def test_the_cursor_of_a_page_opens_the_next() -> None:
    cursor = next_cursor(Page([1, 2], POSITION))
    assert page_window(2, cursor) == Window(2, POSITION)


def test_the_last_page_has_no_cursor() -> None:
    assert next_cursor(Page([1], None)) is None
    assert page_window() == Window(50, None)
