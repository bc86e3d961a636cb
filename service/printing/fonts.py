"""The fonts of printed documents, embedded: Bitstream Vera, which reportlab brings along.

It has Latin letters and mathematical signs. Any other character is printed as its number, so that nothing disappears.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from reportlab.graphics.shapes import STATE_DEFAULTS
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont

REGULAR, BOLD, ITALIC, BOLD_ITALIC = "Vera", "VeraBd", "VeraIt", "VeraBI"
CSS_FAMILY = "'Bitstream Vera Sans', 'DejaVu Sans', Verdana, sans-serif"
"""The same letters, or as wide ones, where a browser draws them."""

_FONTS = {name: TTFont(name, f"{name}.ttf") for name in (REGULAR, BOLD, ITALIC, BOLD_ITALIC)}
for _font in _FONTS.values():
    pdfmetrics.registerFont(_font)
pdfmetrics.registerFontFamily(REGULAR, REGULAR, BOLD, ITALIC, BOLD_ITALIC)
# The font that reportlab sets before it draws: never seen, it would be named in every file and embedded in none.
STATE_DEFAULTS["fontName"] = REGULAR

_DRAWN = frozenset(mark for mark, glyph in _FONTS[REGULAR].face.charToGlyph.items() if glyph)
_SPELT = str.maketrans({"‖": "||", "ε": "epsilon", "→": "->"})
"""Signs of our own sentences that the fonts lack."""


def drawable(text: str) -> str:
    """With every run of characters that the fonts lack put as [U+4E2D U+6587]."""
    runs = itertools.groupby(text.translate(_SPELT), key=lambda mark: mark.isspace() or ord(mark) in _DRAWN)
    return "".join("".join(run) if drawn else _numbered(run) for drawn, run in runs)


def _numbered(run: Iterable[str]) -> str:
    return f"[{' '.join(f'U+{ord(mark):04X}' for mark in run)}]"
