from __future__ import annotations

import itertools

import pytest
import zxingcpp
from PIL import Image, ImageDraw
from reportlab.graphics.shapes import Drawing, Path

from service.printing.qr_figure import MAX_BYTES, qr_figure
from tests.service.printing.statements import CHECKPOINT

SCALE = 6


def photographed(drawing: Drawing) -> Image.Image:
    """The path filled, bar by bar: each is four corners."""
    image = Image.new("L", (int(drawing.width * SCALE), int(drawing.height * SCALE)), 255)
    path = drawing.contents[0]
    assert isinstance(path, Path)
    corners = iter(zip(path.points[::2], path.points[1::2], strict=True))
    while bar := list(itertools.islice(corners, 4)):
        ImageDraw.Draw(image).polygon([(x * SCALE, (drawing.height - y) * SCALE) for x, y in bar], fill=0)
    return image


@pytest.mark.parametrize("text", [CHECKPOINT, "ab" * 32, "x" * MAX_BYTES])
def test_a_reader_reads_what_was_written(text: str) -> None:
    codes = zxingcpp.read_barcodes(photographed(qr_figure(text)))
    assert [code.text for code in codes] == [text]
