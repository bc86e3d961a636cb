from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from service.store.database import Database
from service.store.paging import Page, Position, Window, make_page, newest_first
from service.store.tables import Token

START = datetime(2026, 1, 1, tzinfo=UTC)


def find_page(database: Database, window: Window) -> Page[Token]:
    with database.reading() as session:
        rows = session.scalars(newest_first(select(Token), Token.created_at, Token.id, window)).all()
    return make_page(rows, window, lambda token: Position(token.created_at, token.id))


def add_tokens(database: Database, *days: int) -> None:
    with database.writing() as session:
        for day in days:
            token = Token(caller="acme", role="auditor", digest=uuid.uuid4().hex)
            token.created_at = START + timedelta(days=day)
            session.add(token)


@given(st.timedeltas(timedelta(days=-30_000), timedelta(days=60_000)), st.uuids())
def test_a_cursor_keeps_every_microsecond(age: timedelta, identifier: uuid.UUID) -> None:
    position = Position(START + age, identifier)
    assert Position.decode(position.encode()) == position


@pytest.mark.parametrize(
    "cursor", ["", "x", "AAAA", "é" * 32, "f" + "_" * 31, Position(START, uuid.UUID(int=1)).encode() + "A"]
)
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="`next_cursor` of the previous page"):
        Position.decode(cursor)


def test_pages_contain_every_row_once_newest_first(database: Database) -> None:
    add_tokens(database, 1, 2, 2, 2, 3)  # equal times are ordered by id
    window: Window | None = Window(2)
    tokens, sizes = [], []
    while window is not None:
        page = find_page(database, window)
        tokens += page.items
        sizes.append(len(page.items))
        window = Window(2, page.end) if page.end else None
    assert sizes == [2, 2, 1]
    assert len({token.id for token in tokens}) == 5
    assert tokens == sorted(tokens, key=lambda token: (token.created_at, token.id), reverse=True)


def test_rows_that_arrive_between_pages_shift_nothing(database: Database) -> None:
    add_tokens(database, 1, 2, 3)
    first = find_page(database, Window(2))
    add_tokens(database, 4)
    assert [token.created_at for token in find_page(database, Window(2, first.end)).items] == [
        START + timedelta(days=1)
    ]


def test_a_page_that_is_exactly_full_is_the_last(database: Database) -> None:
    add_tokens(database, 1, 2)
    assert find_page(database, Window(2)).end is None
    assert find_page(database, Window(1)).end is not None
    assert find_page(database, Window(2, Position(START, uuid.UUID(int=0)))).items == []
