from __future__ import annotations

from reportlab.graphics.shapes import Drawing, Line, String

from service.printing.fonts import BOLD, REGULAR
from service.printing.ink import ACCENT, PAPER, WIDTH, add_axis, box, dashed, dot, label


def test_an_axis_has_a_tick_and_a_label_at_each_position_and_a_centred_title() -> None:
    drawing = Drawing(WIDTH, 50)
    add_axis(drawing, 30, (100, 300), [(100, "0"), (300, "1")], "nats")
    lines = [shape for shape in drawing.contents if isinstance(shape, Line)]
    texts = {shape.text: shape for shape in drawing.contents if isinstance(shape, String)}
    assert (lines[0].x1, lines[0].x2, lines[0].y1) == (100, 300, 30)
    assert [line.x1 for line in lines[1:]] == [100, 300]
    assert (texts["1"].x, texts["nats"].x) == (300, 200)
    assert all(text.y < 30 for text in texts.values())


def test_an_open_dot_is_filled_with_paper() -> None:
    assert dot(0, 0, ACCENT).fillColor == ACCENT
    opened = dot(0, 0, ACCENT, filled=False)
    assert (opened.fillColor, opened.strokeColor) == (PAPER, ACCENT)


def test_labels_use_the_embedded_fonts() -> None:
    assert {label(0, 0, "a").fontName, label(0, 0, "a", bold=True).fontName} == {REGULAR, BOLD}


def test_boxes_and_dashed_lines_are_as_given() -> None:
    rectangle = box(1, 2, 3, 4, ACCENT)
    assert (rectangle.x, rectangle.y, rectangle.width, rectangle.height, rectangle.strokeColor) == (1, 2, 3, 4, None)
    assert dashed(0, 0, 1, 1).strokeDashArray == [3, 2]
