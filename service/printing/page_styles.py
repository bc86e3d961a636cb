"""Styles of text and tables on paper."""

from __future__ import annotations

from typing import Any

from reportlab.lib.enums import TA_CENTER
from reportlab.lib.styles import ParagraphStyle

from service.printing.fonts import BOLD, REGULAR
from service.printing.ink import ACCENT, INK, MUTED, RULE, TINT

BODY = ParagraphStyle("body", fontName=REGULAR, fontSize=8.8, leading=13.2, textColor=INK, spaceAfter=6)
LEAD = ParagraphStyle("lead", BODY, fontSize=10, leading=15, spaceAfter=10)
TITLE = ParagraphStyle("title", BODY, fontName=BOLD, fontSize=20, leading=25, textColor=ACCENT, spaceAfter=2)
HEADING = ParagraphStyle("heading", BODY, fontName=BOLD, fontSize=12, leading=16, textColor=ACCENT, spaceBefore=10)
CELL = ParagraphStyle("cell", BODY, fontSize=7.8, leading=11, spaceAfter=0)
NAME = ParagraphStyle("name", CELL, textColor=MUTED)
SUMMARY = ParagraphStyle("summary", BODY, spaceAfter=0)
SUMMARY_NAME = ParagraphStyle("summary name", SUMMARY, fontName=BOLD, textColor=ACCENT)
HEADER = ParagraphStyle("header", CELL, fontName=BOLD, textColor=ACCENT)
CAPTION = ParagraphStyle("caption", CELL, textColor=MUTED, alignment=TA_CENTER, spaceBefore=2, spaceAfter=9)
ABOVE = ParagraphStyle("above", CELL, textColor=MUTED, spaceBefore=4, spaceAfter=2)
COMMAND = ParagraphStyle(
    "command", CELL, backColor=TINT, borderPadding=5, leftIndent=5, rightIndent=5, spaceBefore=8, spaceAfter=12
)
POINT = ParagraphStyle(
    "point", BODY, leftIndent=14, bulletIndent=3, bulletFontName=REGULAR, bulletFontSize=8, spaceAfter=4
)
PLAIN_GRID: list[tuple[Any, ...]] = [
    ("FONTNAME", (0, 0), (-1, -1), REGULAR),
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("LINEBELOW", (0, 0), (-1, -1), 0.4, RULE),
    ("TOPPADDING", (0, 0), (-1, -1), 3),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 3.5),
    ("LEFTPADDING", (0, 0), (-1, -1), 5),
    ("RIGHTPADDING", (0, 0), (-1, -1), 5),
]
HEADED_GRID = [*PLAIN_GRID, ("LINEBELOW", (0, 0), (-1, 0), 0.9, ACCENT)]
SUMMARY_GRID = [*PLAIN_GRID, ("BACKGROUND", (0, 0), (-1, -1), TINT), ("BOX", (0, 0), (-1, -1), 0.8, ACCENT)]
BARE_GRID: list[tuple[Any, ...]] = [
    ("FONTNAME", (0, 0), (-1, -1), REGULAR),
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("LEFTPADDING", (0, 0), (-1, -1), 0),
    ("RIGHTPADDING", (0, 0), (-1, -1), 0),
]
