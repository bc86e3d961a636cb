"""Sections of a certificate beside the bound: what an attacker can learn, predictions, accuracy on new records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.printing.attack_figures import has_scores, membership_figure, scores_figure
from service.printing.parts import Figure, Paragraph, Part, Section, Table
from service.printing.wording import DASH, format_number, format_percent
from vocabulary.effects import (
    Attack,
    Effects,
    Membership,
    MembershipSide,
    PredictionShift,
    Release,
    RiskBound,
    WorstExample,
)


def attack_section(effects: Effects) -> Section | None:
    """Return None if the statement says nothing about attacks."""
    parts = [*_release_parts(effects.release), *(_membership_parts(effects.membership) if effects.membership else ())]
    return Section("What an attacker can learn", tuple(parts)) if parts else None


def risk_section(effects: Effects) -> Section | None:
    """Return None for models that do not classify."""
    if effects.pac_bayes is None:
        return None
    opening = (
        "Forgetting must not break the model. These bounds (PAC-Bayes) limit its error rate on new records, each with "
        "the stated confidence. A bound of 100 % says nothing."
    )
    rows = (_risk_row("before", effects.pac_bayes.before), _risk_row("after", effects.pac_bayes.after))
    header = ("Model", "Error observed", "Error at most", "Confidence", "Records")
    table = Table("Error rates on new records", header, rows, (0.2, 0.2, 0.2, 0.2, 0.2))
    return Section("Accuracy on new records", (Paragraph(opening), table))


def prediction_section(effects: Effects, *, retrained: bool) -> Section | None:
    """Return None for models that do not classify."""
    space = effects.function_space
    if space is None:
        return None
    groups = {"forgotten": space.forgotten, "retained": space.retained, "never seen": space.never_seen}
    rows = tuple((name, *_shift_numbers(shift)) for name, shift in groups.items() if shift is not None)
    header = ("Records", "Count", "KL, mean", "KL, largest", "Noise", "P(label)", "Error")
    table = Table("Predictions before and after", header, rows, (0.13, 0.08, 0.21, 0.13, 0.11, 0.18, 0.16))
    texts = (_PREDICTIONS, _NEVER_SAW if retrained else _MOVED)
    return Section("What changed in predictions", (*(Paragraph(text) for text in texts), table))


def best_guess_rate(advantage: float) -> str:
    """Return how often the best guess between two equally likely models is right: ½ + ½ advantage, rounded up."""
    return f"{math.ceil(1000 * (50 + 50 * advantage)) / 1000:.3f} %"


def _risk_row(side: str, risk: RiskBound) -> tuple[str, ...]:
    confidence = format_percent(1 - risk.delta)
    return side, format_percent(risk.risk), format_percent(risk.bound), confidence, format_number(risk.rows)


_PREDICTIONS = (
    "Both versions predicted the labels of the same records, each averaged over draws of the model. KL is how far the "
    "probabilities moved, in nats, with its standard error from the choice of draws. Noise is how far two halves of "
    "the draws are apart: what draws that are made anew show of the same model. P(label), the probability of a "
    "record's own label, and the error are shown for 21 records or more."
)
_MOVED = (
    "That predictions on the forgotten records moved shows that something was removed, not that all of it was. Of that "
    "the bound speaks."
)
_NEVER_SAW = (
    "The version after never saw the forgotten records: their line shows what they had contributed to the version "
    "before, and the other lines how much two trainings differ."
)


def _shift_numbers(shift: PredictionShift) -> tuple[str, ...]:
    mean = format_number(shift.kl) if shift.kl_error is None else f"{shift.kl:.2g} ± {shift.kl_error:.2g}"
    divergences = (mean, format_number(shift.kl_max), format_number(shift.noise))
    label = _format_change(shift.label_before, shift.label_after)
    return format_number(shift.rows), *divergences, label, _format_change(shift.error_before, shift.error_after)


def _format_change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return DASH
    return f"{format_percent(before)} to {format_percent(after)}"


def _release_parts(releases: Sequence[Release]) -> list[Part]:
    if not releases:
        return []
    opening = (
        "Suppose that someone sees independent draws from the model and has to say whether it once held the records. "
        "If the bound holds, no method is right more often than this; guessing is right 50 % of the time."
    )
    rows = tuple(
        (format_number(item.draws), f"{item.nats:.3e}", f"{item.advantage:.3e}", best_guess_rate(item.advantage))
        for item in releases
    )
    header = ("Draws shown", "Nats", "Advantage", "Right at most")
    return [Paragraph(opening), Table("What draws reveal", header, rows, (0.25, 0.25, 0.25, 0.25))]


def _membership_parts(membership: Membership) -> list[Part]:
    before, after, worst = membership.before, membership.after, membership.worst
    parts: list[Part] = []
    if before.forgotten is not None and after.forgotten is not None:
        figure = _attack_figure(before, after, worst, before.forgotten.auc, after.forgotten.auc)
        parts += [Paragraph(_ATTACKED), figure, _attack_table(before, after)]
        parts += [Paragraph(_describe_worst(worst))] if worst else []
    else:
        parts.append(Paragraph(_NOT_ATTACKED))
    if has_scores(before) and has_scores(after):
        caption = "Distribution of the scores: the share of each group at or below a score."
        description = "Curves of the scores of each group of records, before and after."
        parts.append(Figure(scores_figure(before, after), caption, description))
    return parts


_ATTACKED = (
    "Both versions were attacked by membership inference. Models tend to fit best what they have seen, so the attack "
    "scores each record by its likelihood under the model and compares it with records that no model has seen. At one "
    "half it is blind. That this one attack fails is evidence, not proof."
)
_NOT_ATTACKED = (
    "No membership-inference attack was made: the model was registered without never-seen records to compare with."
)


def _attack_figure(
    before: MembershipSide, after: MembershipSide, worst: WorstExample | None, auc_before: float, auc_after: float
) -> Figure:
    description = f"AUC on forgotten records {auc_before:.3f} before, {auc_after:.3f} after; one half is blind."
    return Figure(membership_figure(before, after, worst), "The attack before (open) and after (filled).", description)


def _attack_table(before: MembershipSide, after: MembershipSide) -> Table:
    attacks = {
        "forgotten, before": before.forgotten,
        "forgotten, after": after.forgotten,
        "retained, before": before.retained,
        "retained, after": after.retained,
    }
    rows = tuple((name, *_attack_numbers(attack)) for name, attack in attacks.items() if attack is not None)
    header = ("Records", "AUC", "Std. error", "Advantage", "By chance below")
    return Table("The attack in numbers", header, rows, (0.3, 0.14, 0.16, 0.18, 0.22))


def _attack_numbers(attack: Attack) -> tuple[str, str, str, str]:
    advantage = max(attack.advantage_above, attack.advantage_below)
    return f"{attack.auc:.3f}", format_number(attack.error), format_number(advantage), format_number(attack.chance)


def _describe_worst(worst: WorstExample) -> str:
    return (
        "Worst example: the forgotten record with the highest score after forgetting. "
        f"{format_percent(worst.p_value)} of the never-seen records score as high; before forgetting it was "
        f"{format_percent(worst.p_value_before)}. Corrected for having picked the worst, the p-value is "
        f"{format_number(worst.adjusted)}."
    )
