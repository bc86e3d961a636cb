"""What else a certificate carries: what an attacker sees, and how well the model still predicts."""

from __future__ import annotations

import math
from typing import Any

from service.printing.attack_figures import membership_figure, scores_figure
from service.printing.parts import Figure, Paragraph, Part, Section, Table
from service.printing.wording import number, share


def attack_section(effects: dict[str, Any]) -> Section | None:
    """None where the statement says nothing of attacks."""
    parts = [*_release(effects.get("release")), *_membership(effects.get("membership"))]
    return Section("What an attacker could see", tuple(parts)) if parts else None


def risk_section(effects: dict[str, Any]) -> Section | None:
    """None for models that do not classify."""
    if not (risks := effects.get("pac_bayes")):
        return None
    opening = (
        "Forgetting must not break the model. These bounds (PAC-Bayes) say how large its error rate on new records can "
        "be, each with the confidence given; a bound of 100 % says nothing."
    )
    rows = tuple(
        (side, share(risk["risk"]), share(risk["bound"]), share(1 - risk["delta"]), number(risk["rows"]))
        for side, risk in ((side, risks[side]) for side in ("before", "after"))
    )
    header = ("Model", "Error seen", "Error at most", "Confidence", "Records")
    return Section(
        "Whether the model still predicts",
        (Paragraph(opening), Table("Error rates on new records", header, rows, (0.2, 0.2, 0.2, 0.2, 0.2))),
    )


def _release(releases: list[dict[str, Any]] | None) -> list[Part]:
    if not releases:
        return []
    opening = (
        "Suppose someone is shown independent draws from the model and has to say whether it once held the records. If "
        "the bound holds, then however they go about it, they are right at most this often; 50 % is tossing a coin."
    )
    rows = tuple(
        (number(one["draws"]), f"{one['nats']:.3e}", f"{one['advantage']:.3e}", right_at_most(one["advantage"]))
        for one in releases
    )
    header = ("Draws shown", "Nats", "Advantage", "Right at most")
    return [Paragraph(opening), Table("What draws give away", header, rows, (0.25, 0.25, 0.25, 0.25))]


def right_at_most(advantage: float) -> str:
    """How often the best guess between two equally likely models is right: ½ + ½ advantage, rounded up."""
    return f"{math.ceil(1000 * (50 + 50 * advantage)) / 1000:.3f} %"


def _membership(membership: dict[str, Any] | None) -> list[Part]:
    if not membership:
        return []
    before, after, worst = membership["before"], membership["after"], membership.get("worst")
    parts: list[Part] = []
    if after.get("forgotten"):
        parts += [Paragraph(_ATTACKED), _attack_figure(before, after, worst), _attack_table(before, after)]
        parts += [Paragraph(_worst_said(worst))] if worst else []
    else:
        parts.append(Paragraph(_NOT_ATTACKED))
    if before.get("forgotten_quantiles") and after.get("forgotten_quantiles"):
        caption = "How the scores are spread: the share of each group at or below a score."
        described = "Curves of the scores of each group of records, before and after."
        parts.append(Figure(scores_figure(before, after), caption, described))
    return parts


_ATTACKED = (
    "A membership-inference attack was made on both versions: models tend to know best what they have seen, so it "
    "scores each record by how likely the model finds it and compares with records that no model has seen. At one half "
    "it is blind. That this one attack fails is evidence, not proof."
)
_NOT_ATTACKED = (
    "No membership-inference attack was made: the model was registered without records that it never saw, with which "
    "the forgotten ones would be compared."
)


def _attack_figure(before: dict[str, Any], after: dict[str, Any], worst: dict[str, Any] | None) -> Figure:
    told = f"AUC on forgotten records {before['forgotten']['auc']:.3f} before, {after['forgotten']['auc']:.3f} after"
    caption = "The attack before (open) and after (filled)."
    return Figure(membership_figure(before, after, worst), caption, f"{told}; one half is blind.")


def _attack_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    rows = tuple(
        (f"{group}, {title}", *_in_numbers(attack))
        for group in ("forgotten", "retained")
        for title, side in (("before", before), ("after", after))
        if (attack := side.get(group))
    )
    header = ("Records", "AUC", "Std. error", "Advantage", "By chance below")
    return Table("The attack in numbers", header, rows, (0.3, 0.14, 0.16, 0.18, 0.22))


def _in_numbers(attack: dict[str, Any]) -> tuple[str, str, str, str]:
    best = max(attack["advantage_above"], attack["advantage_below"])
    return f"{attack['auc']:.3f}", number(attack.get("error")), number(best), number(attack["chance"])


def _worst_said(worst: dict[str, Any]) -> str:
    return (
        "Worst example: the forgotten record that scores highest after forgetting. As high score "
        f"{share(worst['p_value'])} of the never-seen records; before, it was {share(worst['p_value_before'])}. "
        f"Corrected for having picked the worst, the p-value is {number(worst['adjusted'])}."
    )
