"""Figures of the membership-inference attack, before and after."""

from __future__ import annotations

from collections.abc import Sequence

from reportlab.graphics.shapes import Drawing, PolyLine
from reportlab.lib.colors import Color

from service.printing.ink import ACCENT, FAINT, INK, MUTED, RULE, WIDTH, add_axis, dashed, dot, label, line
from vocabulary.effects import Attack, MembershipSide, WorstExample

_TICKS = (0, 0.25, 0.5, 0.75, 1)
_AUC_ENDS, _WORST_ENDS = (88.0, 292.0), (340.0, WIDTH - 14)
_STANDARD_ERRORS = 2
_PANELS = ((44.0, 224.0), (292.0, 472.0))


def membership_figure(before: MembershipSide, after: MembershipSide, worst: WorstExample | None) -> Drawing:
    """Draw how often each group scores above rows that no model has seen; one half is blind."""
    drawing, floor = Drawing(WIDTH, 128), 28.0
    half = _interpolate(_AUC_ENDS, 0.5)
    drawing.add(dashed(half, floor, half, 116))
    drawing.add(label(half, 120, "blind guessing", "middle", MUTED))
    rows = [
        (96.0, "forgotten", ACCENT, before.forgotten, after.forgotten),
        (60.0, "retained", FAINT, before.retained, after.retained),
    ]
    for y, group, colour, attack_before, attack_after in rows:
        drawing.add(label(0, y - 3, f"{group} records", colour=MUTED))
        _add_attack(drawing, attack_before, y + 7, colour, filled=False)
        _add_attack(drawing, attack_after, y - 7, colour, filled=True)
    ticks = [(_interpolate(_AUC_ENDS, tick), f"{tick:g}") for tick in _TICKS]
    add_axis(drawing, floor, _AUC_ENDS, ticks, "AUC of the attack, with two standard errors")
    if worst:
        _add_worst(drawing, worst, floor)
    return drawing


def has_scores(side: MembershipSide) -> bool:
    """Return whether the quantiles can be drawn: there are some, and all are finite."""
    groups = (side.forgotten_quantiles, side.retained_quantiles, side.never_seen_quantiles)
    return bool(side.forgotten_quantiles) and not any(None in quantiles for quantiles in groups)


def scores_figure(before: MembershipSide, after: MembershipSide) -> Drawing:
    """Draw the distribution of each group's scores, which is all that the attack has to go by."""
    drawing, floor, top = Drawing(WIDTH, 150), 28.0, 122.0
    scores = [score for side in (before, after) for _, quantiles, _ in _groups(side) for score in quantiles]
    low, high = min(scores), max(scores)
    span = (high - low) or 1.0
    for ends, title, side in zip(_PANELS, ("before", "after"), (before, after), strict=True):
        drawing.add(label(ends[0], top + 8, title, bold=True))
        for share in _TICKS:
            y = floor + share * (top - floor)
            drawing.add(line(ends[0], y, ends[1], y, RULE, 0.4))
            drawing.add(label(ends[0] - 5, y - 2.5, f"{share:.0%}", "end", MUTED))
        for _, quantiles, colour in _groups(side):
            xs = [_interpolate(ends, (score - low) / span) for score in quantiles]
            _add_curve(drawing, xs, floor, top, colour)
        ticks = [(_interpolate(ends, share), f"{low + share * span:.3g}") for share in (0, 0.5, 1)]
        add_axis(drawing, floor, ends, ticks, "score (mean log-likelihood) of a record")
    _add_legend(drawing, [(name, colour) for name, quantiles, colour in _groups(before) if quantiles], 140)
    return drawing


def _groups(side: MembershipSide) -> list[tuple[str, Sequence[float], Color]]:
    groups = (
        ("forgotten", side.forgotten_quantiles, ACCENT),
        ("retained", side.retained_quantiles, FAINT),
        ("never seen", side.never_seen_quantiles, INK),
    )
    return [(name, [score for score in scores if score is not None], colour) for name, scores, colour in groups]


def _add_attack(drawing: Drawing, attack: Attack | None, y: float, colour: Color, *, filled: bool) -> None:
    if attack is None:
        return
    spread = _STANDARD_ERRORS * (attack.error or 0.0)
    low, high = (_interpolate(_AUC_ENDS, min(1.0, max(0.0, end))) for end in (attack.auc - spread, attack.auc + spread))
    drawing.add(line(low, y, high, y, colour, 1.2))
    drawing.add(dot(_interpolate(_AUC_ENDS, attack.auc), y, colour, filled=filled))
    drawing.add(label(_AUC_ENDS[1] + 6, y - 2.5, "after" if filled else "before", colour=MUTED))


def _add_worst(drawing: Drawing, worst: WorstExample, floor: float) -> None:
    """Draw the forgotten record that looks most as if the model had seen it."""
    drawing.add(label(_WORST_ENDS[0], 120, "the worst forgotten record", colour=MUTED))
    for y, p_value, filled in ((86.0, worst.p_value_before, False), (64.0, worst.p_value, True)):
        drawing.add(line(_WORST_ENDS[0], y, _WORST_ENDS[1], y, RULE, 0.4))
        drawing.add(dot(_interpolate(_WORST_ENDS, p_value), y, ACCENT, filled=filled))
    ticks = [(_interpolate(_WORST_ENDS, tick), f"{tick:g}") for tick in (0, 0.5, 1)]
    add_axis(drawing, floor, _WORST_ENDS, ticks, "share of never-seen scores as high")


def _add_curve(drawing: Drawing, xs: Sequence[float], floor: float, top: float, colour: Color) -> None:
    """Draw quantiles, evenly spaced from 0 to 1."""
    if xs:
        steps = len(xs) - 1
        drawing.add(_stroke([(x, floor + step / steps * (top - floor)) for step, x in enumerate(xs)], colour))


def _add_legend(drawing: Drawing, groups: Sequence[tuple[str, Color]], y: float) -> None:
    for index, (name, colour) in enumerate(groups):
        x = _PANELS[0][0] + 110 + index * 95
        drawing.add(_stroke([(x, y + 2.5), (x + 18, y + 2.5)], colour))
        drawing.add(label(x + 23, y, name, colour=MUTED))


def _stroke(points: Sequence[tuple[float, float]], colour: Color) -> PolyLine:
    """Draw a line, dashed for never-seen records, so that it differs in black-and-white print too."""
    coordinates = [coordinate for point in points for coordinate in point]
    stroke = PolyLine(coordinates, strokeColor=colour, strokeWidth=1.4)
    if colour is INK:
        stroke.strokeDashArray = [3, 2]
    return stroke


def _interpolate(ends: tuple[float, float], share: float) -> float:
    return ends[0] + share * (ends[1] - ends[0])
