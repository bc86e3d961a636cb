"""Figures of the bound on its scale, and of the records before and after."""

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
    add_axis,
    box,
    dot,
    label,
    line,
)
from service.printing.wording import format_count, format_nats

_LEFT, _RIGHT = 16.0, WIDTH - 16.0
_ZERO_WIDTH = 64.0  # 0 is not on a logarithmic scale and gets its own space
_MAX_TICKS = 9
_NAMES_WIDTH = 128.0
_MIN_VISIBLE = 1.5


def bound_figure(epsilon: float, limit: float, level: str, interval: Sequence[float] | None) -> Drawing:
    """Draw the bound, or the interval of an estimate, and the limit that the policy sets."""
    drawing, floor, top = Drawing(WIDTH, 110), 28.0, 80.0
    middle = (floor + top) / 2
    left = _LEFT + (_ZERO_WIDTH if epsilon == 0 else 0)
    low, high = _decades([limit, epsilon, *(interval or ())])

    def position(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * (_RIGHT - left) if value > 0 else _LEFT + 12

    drawing.add(box(_LEFT, floor, position(limit) - _LEFT, top - floor, TINT))
    drawing.add(line(position(limit), floor, position(limit), top + 6, ACCENT, 1.4))
    drawing.add(label(*_beside(position(limit), top + 11, f"policy: at most {format_nats(limit)}"), ACCENT, bold=True))
    drawing.add(label(_LEFT + 6, floor + 5, "within the policy", "start", ACCENT))
    if interval:
        _add_interval(drawing, position(max(interval[0], 10**low)), position(interval[1]), middle)
    drawing.add(dot(position(epsilon), middle, INK))
    text = f"{format_nats(epsilon)}, {level}"
    drawing.add(label(*_beside(position(epsilon), middle + 9, text), INK, bold=True))
    ticks = [(position(10.0**power), f"1e{power:+03d}") for power in _powers(low, high)]
    zero = [(position(0), "0")] if epsilon == 0 else []
    add_axis(drawing, floor, (_LEFT, _RIGHT), [*zero, *ticks], "nats (logarithmic)")
    return drawing


def records_figure(before: int, after: int, versions: Sequence[tuple[str, str]]) -> Drawing:
    """Draw the records of both versions as bars; forgotten ones are an empty space in the second."""
    drawing = Drawing(WIDTH, 118)
    left, per_record = _NAMES_WIDTH, (_RIGHT - _NAMES_WIDTH) / before
    retained_width = after * per_record
    forgotten_width = max((before - after) * per_record, _MIN_VISIBLE)
    for y, title, (name, digest) in zip((76.0, 38.0), ("before", "after"), versions, strict=True):
        drawing.add(label(0, y + 17, title, bold=True))
        drawing.add(label(0, y + 8, name, colour=MUTED))
        drawing.add(label(0, y - 1, f"sha256 {digest[:12]}…", colour=MUTED))
        drawing.add(box(left, y, retained_width, 22, ACCENT))
    drawing.add(box(left + retained_width, 76, forgotten_width, 22, RULE))
    drawing.add(box(left + retained_width, 38, forgotten_width, 22, PAPER, RULE))
    drawing.add(label(left + 6, 84, f"{before:,} records", colour=TINT, bold=True))
    drawing.add(label(left + 6, 46, f"{after:,} records remain", colour=TINT, bold=True))
    forgotten = format_count(before - after, "record", "records")
    drawing.add(label(_RIGHT, 104, f"{forgotten} to forget", "end", MUTED))
    drawing.add(label(_RIGHT, 65, f"{forgotten} forgotten", "end", MUTED))
    ticks = [(left + share * before * per_record, f"{share * before:,.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]
    add_axis(drawing, 28, (left, _RIGHT), ticks, "records that the model is trained on")
    return drawing


def _add_interval(drawing: Drawing, low: float, high: float, y: float) -> None:
    drawing.add(line(low, y, high, y, INK, 1.4))
    for end in (low, high):
        drawing.add(line(end, y - 4, end, y + 4, INK, 1.4))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return powers of ten below and above all positive values, with room for labels."""
    powers = [math.log10(value) for value in values if value > 0]
    return math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1


def _powers(low: int, high: int) -> range:
    return range(low, high + 1, math.ceil((high - low) / _MAX_TICKS))


def _beside(x: float, y: float, text: str) -> tuple[float, float, str, Anchor]:
    """Return where to put a label: on the side of `x` that has more room."""
    return (x + 7, y, text, "start") if x < WIDTH / 2 else (x - 7, y, text, "end")
