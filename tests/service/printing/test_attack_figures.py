from __future__ import annotations

from reportlab.graphics.shapes import Circle, Drawing, PolyLine, String

from service.printing.attack_figures import membership_figure, scores_figure
from tests.service.printing.statements import attack
from tests.service.printing.statements import side as side_content
from vocabulary.effects import MembershipSide, WorstExample


def side(auc: float, **members: object) -> MembershipSide:
    return MembershipSide.model_validate({**side_content(auc), **members})


def dots(drawing: Drawing) -> list[Circle]:
    return [shape for shape in drawing.contents if isinstance(shape, Circle)]


def test_an_attack_that_became_blind_is_drawn_at_one_half() -> None:
    drawing = membership_figure(side(0.9), side(0.5), None)
    half = next(shape.x for shape in drawing.contents if isinstance(shape, String) and shape.text == "blind guessing")
    before, after = dots(drawing)[:2]
    assert after.cx == half < before.cx


def test_the_worst_example_is_drawn_before_and_after() -> None:
    worst = WorstExample(p_value_before=0.0, p_value=1.0, adjusted=1.0)
    with_it, without = (dots(membership_figure(side(0.9), side(0.5), example)) for example in (worst, None))
    assert len(with_it) == len(without) + 2
    assert with_it[-1].cx > with_it[-2].cx


def test_a_group_of_one_has_no_error_bar_and_is_drawn() -> None:
    alone = side(0.5, forgotten={**attack(0.5), "error": None})
    assert len(dots(membership_figure(alone, alone, None))) == 4


def test_scores_are_curves_of_the_groups_that_there_are() -> None:
    few = side(0.5, never_seen_quantiles=[])
    curves = [shape for shape in scores_figure(few, few).contents if isinstance(shape, PolyLine)]
    assert len([curve for curve in curves if len(curve.points) == 42]) == 4


def test_scores_that_are_all_alike_are_drawn() -> None:
    alike = MembershipSide(forgotten_quantiles=[1.0] * 21)
    assert scores_figure(alike, alike).contents
