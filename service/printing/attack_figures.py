"""What a membership-inference attack made of the model, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reportlab.graphics.shapes import Drawing, PolyLine
from reportlab.lib.colors import Color

from service.printing.ink import ACCENT, FAINT, INK, MUTED, RULE, WIDTH, dashed, dot, label, line, scale_below

_TICKS = (0, 0.25, 0.5, 0.75, 1)
_AUC_ENDS, _WORST_ENDS = (88.0, 292.0), (340.0, WIDTH - 14)
_STANDARD_ERRORS = 2
_PANELS = ((44.0, 224.0), (292.0, 472.0))
_GROUPS: tuple[tuple[str, str, Color], ...] = (
    ("forgotten_quantiles", "forgotten", ACCENT),
    ("retained_quantiles", "retained", FAINT),
    ("never_seen_quantiles", "never seen", INK),
)


def membership_figure(before: Mapping[str, Any], after: Mapping[str, Any], worst: Mapping[str, Any] | None) -> Drawing:
    """How often each group scores above rows that no model has seen; one half is blind."""
    drawing, floor = Drawing(WIDTH, 128), 28.0
    rows = [(96.0, "forgotten", ACCENT), (60.0, "retained", FAINT)]
    half = _on(_AUC_ENDS, 0.5)
    drawing.add(dashed(half, floor, half, 116))
    drawing.add(label(half, 120, "blind guessing", "middle", MUTED))
    for y, group, colour in rows:
        drawing.add(label(0, y - 3, f"{group} records", colour=MUTED))
        _add_attack(drawing, before.get(group), y + 7, colour, filled=False)
        _add_attack(drawing, after.get(group), y - 7, colour, filled=True)
    ticks = [(_on(_AUC_ENDS, tick), f"{tick:g}") for tick in _TICKS]
    scale_below(drawing, floor, _AUC_ENDS, ticks, "AUC of the attack, with two standard errors")
    if worst:
        _add_worst(drawing, worst, floor)
    return drawing


def scores_figure(before: Mapping[str, Any], after: Mapping[str, Any]) -> Drawing:
    """How the scores of each group are spread, before and after: what the attack has to go by."""
    drawing, floor, top = Drawing(WIDTH, 150), 28.0, 122.0
    seen = [score for side in (before, after) for name, _, _ in _GROUPS for score in side.get(name, ())]
    low, high = min(seen), max(seen)
    span = (high - low) or 1.0
    for ends, title, side in zip(_PANELS, ("before", "after"), (before, after), strict=True):
        drawing.add(label(ends[0], top + 8, title, bold=True))
        for part in _TICKS:
            y = floor + part * (top - floor)
            drawing.add(line(ends[0], y, ends[1], y, RULE, 0.4))
            drawing.add(label(ends[0] - 5, y - 2.5, f"{part:.0%}", "end", MUTED))
        for name, _, colour in _GROUPS:
            places = [_on(ends, (score - low) / span) for score in side.get(name, ())]
            _add_curve(drawing, places, floor, top, colour)
        ticks = [(_on(ends, part), f"{low + part * span:.3g}") for part in (0, 0.5, 1)]
        scale_below(drawing, floor, ends, ticks, "score (mean log-likelihood) of a record")
    _add_key(drawing, [(name, colour) for field, name, colour in _GROUPS if before.get(field)], 140)
    return drawing


def _add_attack(drawing: Drawing, attack: Mapping[str, Any] | None, y: float, colour: Color, *, filled: bool) -> None:
    if attack is None:
        return
    auc, spread = attack["auc"], _STANDARD_ERRORS * (attack.get("error") or 0.0)
    reach = _on(_AUC_ENDS, max(0.0, auc - spread)), _on(_AUC_ENDS, min(1.0, auc + spread))
    drawing.add(line(reach[0], y, reach[1], y, colour, 1.2))
    drawing.add(dot(_on(_AUC_ENDS, auc), y, colour, filled=filled))
    drawing.add(label(_AUC_ENDS[1] + 6, y - 2.5, f"{'after' if filled else 'before'}", colour=MUTED))


def _add_worst(drawing: Drawing, worst: Mapping[str, Any], floor: float) -> None:
    """The forgotten record that looks most as if it had been seen."""
    drawing.add(label(_WORST_ENDS[0], 120, "the worst forgotten record", colour=MUTED))
    for y, name, filled in ((86.0, "p_value_before", False), (64.0, "p_value", True)):
        drawing.add(line(_WORST_ENDS[0], y, _WORST_ENDS[1], y, RULE, 0.4))
        drawing.add(dot(_on(_WORST_ENDS, worst[name]), y, ACCENT, filled=filled))
    ticks = [(_on(_WORST_ENDS, tick), f"{tick:g}") for tick in (0, 0.5, 1)]
    scale_below(drawing, floor, _WORST_ENDS, ticks, "never-seen ones scoring as high")


def _add_curve(drawing: Drawing, places: Sequence[float], floor: float, top: float, colour: Color) -> None:
    """Quantiles, evenly apart from 0 to 1."""
    if places:
        steps = len(places) - 1
        drawing.add(_stroke([(x, floor + step / steps * (top - floor)) for step, x in enumerate(places)], colour))


def _add_key(drawing: Drawing, groups: Sequence[tuple[str, Color]], y: float) -> None:
    for index, (name, colour) in enumerate(groups):
        x = _PANELS[0][0] + 110 + index * 95
        drawing.add(_stroke([(x, y + 2.5), (x + 18, y + 2.5)], colour))
        drawing.add(label(x + 23, y, name, colour=MUTED))


def _stroke(points: Sequence[tuple[float, float]], colour: Color) -> PolyLine:
    """Dashed for what neither version has seen, so that it differs in print too."""
    stroke = PolyLine([at for point in points for at in point], strokeColor=colour, strokeWidth=1.4)
    if colour is INK:
        stroke.strokeDashArray = [3, 2]
    return stroke


def _on(ends: tuple[float, float], part: float) -> float:
    return ends[0] + part * (ends[1] - ends[0])
