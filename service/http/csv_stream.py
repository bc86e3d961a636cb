"""CSV streams: a header, then rows page by page. Spreadsheets evaluate none of it as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
Cell = str | int | float | None


def csv_chunks(header: Sequence[str], pages: Iterable[Iterable[Sequence[Cell]]]) -> Iterator[str]:
    """Yield one text per page of rows, so that only one page is in memory."""
    yield _text([header])
    for rows in pages:
        yield _text(rows)


def _text(rows: Iterable[Sequence[Cell]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([_escape(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _escape(cell: Cell) -> Cell:
    """Prefix text that a spreadsheet would evaluate with an apostrophe; numbers stay numbers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
