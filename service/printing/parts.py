"""What a printed document is made of. Text is plain: who renders it escapes it."""

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
    """To be typed as it stands."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names, each with what is said of it."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """`shares` are the widths of the columns, as parts of the whole."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]


def numbered_list(caption: str, title: str, items: Sequence[str], most: int) -> Table:
    """One item a row; of many the first, since the signed file has them all."""
    rows = [(f"{place:,}", item) for place, item in enumerate(items[:most], start=1)]
    left = len(items) - most
    more = [("–", f"and {left:,} more, in the signed file")] if left > 0 else []
    return Table(caption, ("No.", title), (*rows, *more), (0.08, 0.92))


@dataclass(frozen=True, eq=False)
class Figure:
    """`description` says in words what the drawing shows, for those who cannot see it."""

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
    """`lead`, `summary` and `picture` are what a reader in a hurry sees; `footer` stands on every page."""

    title: str
    lead: str
    summary: Facts
    picture: Figure | None
    sections: tuple[Section, ...]
    footer: str
