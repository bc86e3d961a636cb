from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from reportlab.graphics.shapes import Circle, Drawing, Rect, String

from service.printing.figures import bound_figure, records_figure
from service.printing.ink import WIDTH


def strings(drawing: Drawing) -> Iterator[String]:
    return (shape for shape in drawing.contents if isinstance(shape, String))


@pytest.mark.parametrize(
    ("epsilon", "limit", "interval"),
    [
        (7.7e-7, 1e-6, None),
        (0.0, 1e-6, None),
        (7.7e-5, 1e-3, [2e-7, 7.7e-5]),
        (1e-300, 10.0, None),
        (3.0, 4.0, [0.0, 3.0]),
    ],
)
def test_the_bound_lies_left_of_the_policy_and_inside_the_picture(
    epsilon: float, limit: float, interval: list[float] | None
) -> None:
    drawing = bound_figure(epsilon, limit, "proved", interval)
    dots = [shape for shape in drawing.contents if isinstance(shape, Circle)]
    allowed = next(shape for shape in drawing.contents if isinstance(shape, Rect))
    assert len(dots) == 1
    assert 0 <= dots[0].cx <= allowed.x + allowed.width <= WIDTH
    assert all(0 <= text.x <= WIDTH and 0 <= text.y <= drawing.height for text in strings(drawing))


def test_a_bound_beyond_the_policy_is_drawn_beyond_it() -> None:
    drawing = bound_figure(1e-5, 1e-6, "none", None)
    allowed = next(shape for shape in drawing.contents if isinstance(shape, Rect))
    assert next(shape.cx for shape in drawing.contents if isinstance(shape, Circle)) > allowed.x + allowed.width


def test_ticks_do_not_crowd() -> None:
    drawing = bound_figure(1e-300, 1.0, "proved", None)
    ticks = sorted(text.x for text in strings(drawing) if text.text.startswith("1e"))
    assert min(right - left for left, right in itertools.pairwise(ticks)) > 30


def test_one_record_of_a_million_is_still_seen() -> None:
    drawing = records_figure(1_000_000, 999_999, [("version 1", "a" * 64), ("version 2", "b" * 64)])
    widths = [shape.width for shape in drawing.contents if isinstance(shape, Rect)]
    assert min(widths) >= 1
    texts = [text.text for text in strings(drawing)]
    assert "1 record forgotten" in texts
    assert "999,999 records remain" in texts
