"""The bound on its scale, and the records before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reportlab.graphics.shapes import Drawing

from service.printing.ink import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    RULE,
    TINT,
    WIDTH,
    Anchor,
    box,
    dot,
    label,
    line,
    scale_below,
)
from service.printing.wording import counted, nats

_LEFT, _RIGHT = 16.0, WIDTH - 16.0
_ZERO_WIDTH = 64.0  # a logarithm has no place for 0: it gets one of its own
_MOST_TICKS = 9
_NAMES_WIDTH = 128.0
_LEAST_VISIBLE = 1.5


def bound_figure(epsilon: float, limit: float, level: str, interval: Sequence[float] | None) -> Drawing:
    """The bound, or the interval of an estimate, beside what the policy allows."""
    drawing, floor, top = Drawing(WIDTH, 110), 28.0, 80.0
    middle = (floor + top) / 2
    left = _LEFT + (_ZERO_WIDTH if epsilon == 0 else 0)
    low, high = _decades([limit, epsilon, *(interval or ())])

    def place(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * (_RIGHT - left) if value > 0 else _LEFT + 12

    drawing.add(box(_LEFT, floor, place(limit) - _LEFT, top - floor, TINT))
    drawing.add(line(place(limit), floor, place(limit), top + 6, ACCENT, 1.4))
    drawing.add(label(*_beside(place(limit), top + 11, f"policy: at most {nats(limit)}"), ACCENT, bold=True))
    drawing.add(label(_LEFT + 6, floor + 5, "within the policy", "start", ACCENT))
    if interval:
        _add_interval(drawing, place(max(interval[0], 10**low)), place(interval[1]), middle)
    drawing.add(dot(place(epsilon), middle, INK))
    text = f"{nats(epsilon)}, {level}"
    drawing.add(label(*_beside(place(epsilon), middle + 9, text), INK, bold=True))
    ticks = [(place(10.0**power), f"1e{power:+03d}") for power in _powers(low, high)]
    zero = [(place(0), "0")] if epsilon == 0 else []
    scale_below(drawing, floor, (_LEFT, _RIGHT), [*zero, *ticks], "nats, each mark ten times the last")
    return drawing


def records_figure(before: int, after: int, versions: Sequence[tuple[str, str]]) -> Drawing:
    """Bars of the records behind both versions of the model; what was forgotten is an empty place in the second."""
    drawing = Drawing(WIDTH, 118)
    left, per_record = _NAMES_WIDTH, (_RIGHT - _NAMES_WIDTH) / before
    kept, gone = after * per_record, max((before - after) * per_record, _LEAST_VISIBLE)
    for y, title, (name, digest) in zip((76.0, 38.0), ("before", "after"), versions, strict=True):
        drawing.add(label(0, y + 17, title, bold=True))
        drawing.add(label(0, y + 8, name, colour=MUTED))
        drawing.add(label(0, y - 1, f"sha256 {digest[:12]}…", colour=MUTED))
        drawing.add(box(left, y, kept, 22, ACCENT))
    drawing.add(box(left + kept, 76, gone, 22, RULE))
    drawing.add(box(left + kept, 38, gone, 22, PAPER, RULE))
    drawing.add(label(left + 6, 84, f"{before:,} records", colour=TINT, bold=True))
    drawing.add(label(left + 6, 46, f"{after:,} records remain", colour=TINT, bold=True))
    forgotten = counted(before - after, "record", "records")
    drawing.add(label(_RIGHT, 104, f"{forgotten} to forget", "end", MUTED))
    drawing.add(label(_RIGHT, 65, f"{forgotten} forgotten", "end", MUTED))
    ticks = [(left + part * before * per_record, f"{part * before:,.0f}") for part in (0, 0.25, 0.5, 0.75, 1)]
    scale_below(drawing, 28, (left, _RIGHT), ticks, "records that the model was trained on")
    return drawing


def _add_interval(drawing: Drawing, low: float, high: float, y: float) -> None:
    drawing.add(line(low, y, high, y, INK, 1.4))
    for end in (low, high):
        drawing.add(line(end, y - 4, end, y + 4, INK, 1.4))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values that have one, with room for what is written beside them."""
    powers = [math.log10(value) for value in values if value > 0]
    return math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1


def _powers(low: int, high: int) -> range:
    return range(low, high + 1, math.ceil((high - low) / _MOST_TICKS))


def _beside(x: float, y: float, text: str) -> tuple[float, float, str, Anchor]:
    """Text on the side of `x` that has more room."""
    return (x + 7, y, text, "start") if x < WIDTH / 2 else (x - 7, y, text, "end")
