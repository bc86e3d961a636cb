"""What a way of forgetting has forgotten: its difference to a control that takes the same steps with nothing removed.

    effect(way)      = score(way) - score(control of the way)
    effect(target)   = mean score of both retrainings - score of doing nothing

A way that goes on with training lowers errors that have nothing to do with the forgotten rows. Its control shows that
(`drift`, the control against doing nothing), and the difference takes it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.paper.bnn import NetworkComparison, Score


@dataclass(frozen=True)
class Effect:
    """Changes of the errors in points, and of the loss on the forgotten rows in nats."""

    forgotten_error: float
    forgotten_loss: float
    retained_error: float

    def distance(self, other: Effect) -> float:
        """Return how far the losses on the forgotten rows are apart."""
        return abs(self.forgotten_loss - other.forgotten_loss)


def effect(comparison: NetworkComparison, way: str) -> Effect | None:
    """Return what a way has forgotten; None if it, or its control, was refused."""
    score, control = _get_score(comparison, way), _get_score(comparison, control_of(comparison, way))
    return None if score is None or control is None else _subtract(score, control)


def drift(comparison: NetworkComparison, way: str) -> Effect | None:
    """Return what the steps of a way do with nothing removed: the effect of training on."""
    control, nothing = _get_score(comparison, control_of(comparison, way)), _get_score(comparison, "nothing")
    return None if control is None or nothing is None else _subtract(control, nothing)


def target(comparison: NetworkComparison) -> Effect:
    """Return the effect that forgetting should have: retrained less original, over both retrainings."""
    first, second = effect(comparison, "retrained"), effect(comparison, "again")
    if first is None or second is None:
        raise ValueError("a comparison without retrainings has no target")
    return Effect(
        (first.forgotten_error + second.forgotten_error) / 2,
        (first.forgotten_loss + second.forgotten_loss) / 2,
        (first.retained_error + second.retained_error) / 2,
    )


def is_nearer_than_paper(comparison: NetworkComparison, way: str) -> bool | None:
    """Return whether a way's effect is nearer to the target than the paper's; None if one of them has none."""
    ours, paper = effect(comparison, way), effect(comparison, "paper")
    if ours is None or paper is None:
        return None
    return ours.distance(target(comparison)) < paper.distance(target(comparison))


def control_of(comparison: NetworkComparison, way: str) -> str:
    """Return the name of a way's control; doing nothing, for ways whose steps vanish with nothing removed."""
    control = f"{way} control"
    return control if control in comparison.ways else "nothing"


def _get_score(comparison: NetworkComparison, way: str) -> Score | None:
    return comparison.ways[way].score


def _subtract(score: Score, control: Score) -> Effect:
    return Effect(
        score.forgotten_error - control.forgotten_error,
        score.forgotten_loss - control.forgotten_loss,
        score.retained_error - control.retained_error,
    )
