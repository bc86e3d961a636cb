"""Parts of a printed document. Text is plain; the renderers escape it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reportlab.graphics.shapes import Drawing


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Points:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """Command line, to be typed as it is."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """`shares` are the widths of the columns as fractions of the whole."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]


def numbered_list(caption: str, title: str, items: Sequence[str], limit: int) -> Table:
    """Return a table with one row for each of the first items; the signed file has them all."""
    rows = [(f"{number:,}", item) for number, item in enumerate(items[:limit], start=1)]
    omitted = len(items) - limit
    more = [("–", f"and {omitted:,} more, in the signed file")] if omitted > 0 else []
    return Table(caption, ("No.", title), (*rows, *more), (0.08, 0.92))


@dataclass(frozen=True, eq=False)
class Figure:
    """`description` is the text alternative of the drawing."""

    drawing: Drawing
    caption: str
    description: str


@dataclass(frozen=True, eq=False)
class Seal:
    """A small figure with facts beside it."""

    figure: Figure
    facts: Facts


Part = Paragraph | Points | Command | Facts | Table | Figure | Seal


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Document:
    """`lead`, `summary` and `picture` are the first page; `footer` is on every page."""

    title: str
    lead: str
    summary: Facts
    picture: Figure | None
    sections: tuple[Section, ...]
    footer: str
