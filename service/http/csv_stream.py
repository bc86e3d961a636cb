"""CSV as it streams: a header, then rows as they come. Nothing in it is a formula to a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
Cell = str | int | float | None


def csv_chunks(header: Sequence[str], pages: Iterable[Iterable[Sequence[Cell]]]) -> Iterator[str]:
    """One piece of text for each page of rows, so that only one page is ever in memory."""
    yield _text([header])
    for rows in pages:
        yield _text(rows)


def _text(rows: Iterable[Sequence[Cell]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([_harmless(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _harmless(cell: Cell) -> Cell:
    """Text that a spreadsheet would compute gets an apostrophe in front; numbers stay numbers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
