from __future__ import annotations

import pytest
from reportlab.lib.styles import ParagraphStyle

from service.printing import page_styles
from service.printing.fonts import BOLD, REGULAR

STYLES = [style for style in vars(page_styles).values() if isinstance(style, ParagraphStyle)]
GRIDS = [page_styles.PLAIN_GRID, page_styles.HEADED_GRID, page_styles.SUMMARY_GRID, page_styles.BARE_GRID]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_every_style_uses_an_embedded_font_with_room_between_lines(style: ParagraphStyle) -> None:
    assert style.fontName in (REGULAR, BOLD)
    assert style.leading >= 1.2 * style.fontSize


@pytest.mark.parametrize("grid", GRIDS)
def test_every_grid_sets_an_embedded_font(grid: list[tuple[object, ...]]) -> None:
    assert ("FONTNAME", (0, 0), (-1, -1), REGULAR) in grid
