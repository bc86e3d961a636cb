"""Colours and shapes of every figure and page: dark on white, with one accent."""

from __future__ import annotations

from typing import Literal

from reportlab.graphics.shapes import Circle, Drawing, Line, Rect, String
from reportlab.lib.colors import Color, HexColor

from service.printing.fonts import BOLD, REGULAR

INK, MUTED, FAINT, RULE = HexColor("#1c2530"), HexColor("#56626d"), HexColor("#8b98a2"), HexColor("#c5ced5")
ACCENT, TINT, PAPER = HexColor("#17526b"), HexColor("#e9f0f3"), HexColor("#ffffff")
WIDTH = 480.0
"""Width of every figure in points: that of the text on A4."""
_SIZE = 7.5
Anchor = Literal["start", "middle", "end"]


def line(x1: float, y1: float, x2: float, y2: float, colour: Color = INK, width: float = 0.7) -> Line:
    return Line(x1, y1, x2, y2, strokeColor=colour, strokeWidth=width)


def dashed(x1: float, y1: float, x2: float, y2: float, colour: Color = MUTED) -> Line:
    return Line(x1, y1, x2, y2, strokeColor=colour, strokeWidth=0.8, strokeDashArray=[3, 2])


def box(x: float, y: float, width: float, height: float, fill: Color, stroke: Color | None = None) -> Rect:
    rectangle = Rect(x, y, width, height)
    rectangle.fillColor, rectangle.strokeColor, rectangle.strokeWidth = fill, stroke, 0.7
    return rectangle


def dot(x: float, y: float, colour: Color, *, filled: bool = True) -> Circle:
    return Circle(x, y, 3.4, fillColor=colour if filled else PAPER, strokeColor=colour, strokeWidth=1.1)


def label(
    x: float, y: float, text: str, anchor: Anchor = "start", colour: Color = INK, *, bold: bool = False
) -> String:
    font = BOLD if bold else REGULAR
    return String(x, y, text, fontName=font, fontSize=_SIZE, textAnchor=anchor, fillColor=colour)


def add_axis(drawing: Drawing, y: float, ends: tuple[float, float], ticks: list[tuple[float, str]], title: str) -> None:
    """Add a horizontal axis with ticks, given in points, and a title below."""
    drawing.add(line(ends[0], y, ends[1], y, MUTED))
    for x, text in ticks:
        drawing.add(line(x, y, x, y - 3, MUTED))
        drawing.add(label(x, y - 11, text, "middle", MUTED))
    drawing.add(label((ends[0] + ends[1]) / 2, y - 23, title, "middle", MUTED))
