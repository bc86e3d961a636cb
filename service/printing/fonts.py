"""Fonts of printed documents, embedded: Bitstream Vera, which comes with reportlab.

They have Latin letters and mathematical signs. Any other character is printed as its number, so that nothing is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from reportlab.graphics.shapes import STATE_DEFAULTS
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont

REGULAR, BOLD, ITALIC, BOLD_ITALIC = "Vera", "VeraBd", "VeraIt", "VeraBI"
CSS_FAMILY = "'Bitstream Vera Sans', 'DejaVu Sans', Verdana, sans-serif"
"""The same font, or one of the same width, in a browser."""

_FONTS = {name: TTFont(name, f"{name}.ttf") for name in (REGULAR, BOLD, ITALIC, BOLD_ITALIC)}
for _font in _FONTS.values():
    pdfmetrics.registerFont(_font)
pdfmetrics.registerFontFamily(REGULAR, REGULAR, BOLD, ITALIC, BOLD_ITALIC)
# The font that reportlab sets before it draws. The default would be named in every file without being embedded.
STATE_DEFAULTS["fontName"] = REGULAR

_AVAILABLE = frozenset(mark for mark, glyph in _FONTS[REGULAR].face.charToGlyph.items() if glyph)
_SUBSTITUTES = str.maketrans({"‖": "||", "ε": "epsilon", "→": "->"})
"""Spelling of signs in our own sentences that the fonts lack."""


def drawable(text: str) -> str:
    """Replace every run of characters that the fonts lack by their numbers, as in [U+4E2D U+6587]."""
    runs = itertools.groupby(text.translate(_SUBSTITUTES), key=lambda mark: mark.isspace() or ord(mark) in _AVAILABLE)
    return "".join("".join(run) if available else _as_numbers(run) for available, run in runs)


def _as_numbers(run: Iterable[str]) -> str:
    return f"[{' '.join(f'U+{ord(mark):04X}' for mark in run)}]"
