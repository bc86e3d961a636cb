"""Document as PDF: A4, embedded fonts, the same bytes for the same bundle."""

from __future__ import annotations

import functools
import io
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import CondPageBreak, Flowable, HRFlowable, KeepTogether, SimpleDocTemplate, Spacer
from reportlab.platypus import Paragraph as Text
from reportlab.platypus import Table as Grid

from service.printing.document import make_document
from service.printing.fonts import REGULAR, drawable
from service.printing.ink import ACCENT, MUTED, RULE, WIDTH
from service.printing.page_styles import (
    ABOVE,
    BARE_GRID,
    BODY,
    CAPTION,
    CELL,
    COMMAND,
    HEADED_GRID,
    HEADER,
    HEADING,
    LEAD,
    NAME,
    PLAIN_GRID,
    POINT,
    SUMMARY,
    SUMMARY_GRID,
    SUMMARY_NAME,
    TITLE,
)
from service.printing.parts import Command, Document, Facts, Figure, Paragraph, Part, Points, Seal, Section, Table

_MARGIN = (A4[0] - WIDTH) / 2
_MAX_UNBROKEN = 14  # rows of a table
_CHARACTER_NOTE = (
    "Characters that these fonts lack, or that are invisible, are printed as their Unicode numbers; the signed file "
    "has the characters themselves."
)


def render_pdf(bundle: str) -> bytes:
    """Render a bundle. Raises Unprintable."""
    document, output = make_document(bundle), io.BytesIO()
    template = SimpleDocTemplate(
        output,
        pagesize=A4,
        leftMargin=_MARGIN - 6,  # the frame has a padding of 6
        rightMargin=_MARGIN - 6,
        topMargin=16 * mm,
        bottomMargin=17 * mm,
        title=drawable(document.footer),
        author="Lethe",
        subject=drawable(document.lead),
        creator="Lethe",
        lang="en",
        initialFontName=REGULAR,
        invariant=1,
    )
    canvas = functools.partial(_FooterCanvas, footer=drawable(document.footer))
    template.build(_story(document), canvasmaker=canvas)
    return output.getvalue()


class _FooterCanvas(Canvas):
    """Canvas that keeps its pages until the end: only then is the number of pages known for the footers."""

    def __init__(self, *args: Any, footer: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._footer = footer
        self._pages: list[dict[str, Any]] = []
        self.setViewerPreference("DisplayDocTitle", "true")

    def showPage(self) -> None:  # noqa: N802 (reportlab's name)
        self._pages.append(dict(self.__dict__))
        self._startPage()  # type: ignore[attr-defined]

    def save(self) -> None:
        for number, page in enumerate(self._pages, start=1):
            self.__dict__.update(page)
            self._add_footer(f"page {number} of {len(self._pages)}")
            super().showPage()
        super().save()

    def _add_footer(self, page: str) -> None:
        self.setStrokeColor(RULE)
        self.setLineWidth(0.5)
        self.line(_MARGIN, 13 * mm, A4[0] - _MARGIN, 13 * mm)
        self.setFont(REGULAR, 7)
        self.setFillColor(MUTED)
        self.drawString(_MARGIN, 9 * mm, self._footer)
        self.drawRightString(A4[0] - _MARGIN, 9 * mm, page)


def _story(document: Document) -> list[Flowable]:
    story: list[Flowable] = [
        Text("LETHE", HEADER),
        _text(document.title, TITLE),
        HRFlowable(width="100%", thickness=1.4, color=ACCENT, spaceBefore=4, spaceAfter=10),
        _text(document.lead, LEAD),
        _summary(document.summary),
    ]
    story += [_text(_CHARACTER_NOTE, ABOVE)] if "[U+" in drawable(document.lead) else []
    story += [Spacer(0, 10), *_flowables(document.picture)] if document.picture else []
    for section in document.sections:
        story += _section(section)
    return story


def _section(section: Section) -> list[Flowable]:
    """Keep the heading with the first part and, if that is short, with the second."""
    parts = list(section.parts)
    opening = [_text(section.title, HEADING), *_flowables(parts.pop(0))]
    if parts and _is_short(parts[0]):
        opening += _flowables(parts.pop(0))
    return [KeepTogether(opening), *(flowable for part in parts for flowable in _unbroken(part))]


def _unbroken(part: Part) -> list[Flowable]:
    """Keep a part on one page, unless it is long."""
    return [KeepTogether(_flowables(part))] if _is_short(part) else [CondPageBreak(30 * mm), *_flowables(part)]


def _is_short(part: Part) -> bool:
    return not isinstance(part, Facts | Table) or len(part.rows) <= _MAX_UNBROKEN


def _flowables(part: Part) -> list[Flowable]:
    match part:
        case Paragraph(text):
            return [_text(text, BODY)]
        case Points(items):
            return [Text(escape(drawable(item)), POINT, bulletText="•") for item in items]
        case Command(text):
            return [_text(text, COMMAND)]
        case Facts():
            return [_facts(part), Spacer(0, 6)]
        case Table():
            return [_text(part.caption, ABOVE), _table(part), Spacer(0, 6)]
        case Figure(drawing, caption, _):
            drawing.hAlign = "CENTER"
            return [drawing, _text(caption, CAPTION)]
        case Seal(figure, facts):
            return [_seal(figure, facts)]


def _summary(facts: Facts) -> Grid:
    rows = [[_text(name, SUMMARY_NAME), _text(text, SUMMARY)] for name, text in facts.rows]
    return Grid(rows, [WIDTH * 0.18, WIDTH * 0.82], style=SUMMARY_GRID, splitInRow=1)


def _facts(facts: Facts, width: float = WIDTH) -> Grid:
    rows = [[_text(name, NAME), _text(text, CELL)] for name, text in facts.rows]
    return Grid(rows, [width * 0.24, width * 0.76], style=PLAIN_GRID, splitInRow=1)


def _seal(figure: Figure, facts: Facts) -> Grid:
    left = figure.drawing.width + 10
    sides = [[figure.drawing, _text(figure.caption, CAPTION)], _facts(facts, WIDTH - left)]
    return Grid([sides], [left, WIDTH - left], style=BARE_GRID)


def _table(table: Table) -> Grid:
    rows = [[_text(cell, HEADER) for cell in table.header]]
    rows += [[_text(cell, CELL) for cell in row] for row in table.rows]
    return Grid(rows, [WIDTH * share for share in table.shares], repeatRows=1, style=HEADED_GRID, splitInRow=1)


def _text(text: str, style: ParagraphStyle) -> Text:
    return Text(escape(drawable(text)), style)
