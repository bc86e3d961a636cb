from __future__ import annotations

from typing import Any

import pytest

from service.printing.evidence_sections import attack_section, best_guess_rate, prediction_section, risk_section
from service.printing.parts import Figure, Paragraph, Table
from tests.service.printing.statements import Change, certificate_content
from vocabulary.effects import Effects


def effects(change: Change = lambda _: None) -> Effects:
    content = certificate_content()["effects"]
    change(content)
    return Effects.model_validate(content)


def test_an_attack_is_described_drawn_and_tabulated() -> None:
    section = attack_section(effects())
    assert section is not None
    assert len([part for part in section.parts if isinstance(part, Figure)]) == 2
    draws, attacks = (part for part in section.parts if isinstance(part, Table))
    assert draws.rows == (("1", "2.500e-07", "3.500e-04", "50.018 %"),)
    assert attacks.rows[1] == ("forgotten, after", "0.507", "0.02", "0.31", "0.12")
    texts = [part.text for part in section.parts if isinstance(part, Paragraph)]
    assert "31 % of the never-seen records score as high; before forgetting it was 0.4 %" in texts[-1]


def test_without_never_seen_records_it_says_that_there_was_no_attack() -> None:
    def change(content: dict[str, Any]) -> None:
        del content["release"]
        for version in ("before", "after"):
            content["membership"][version].update(forgotten=None, retained=None, forgotten_quantiles=[])

    section = attack_section(effects(change))
    assert section is not None
    (paragraph,) = section.parts
    assert isinstance(paragraph, Paragraph)
    assert paragraph.text.startswith("No membership-inference attack was made")


def test_scores_that_are_not_finite_are_not_drawn() -> None:
    def change(content: dict[str, Any]) -> None:
        content["membership"]["after"]["retained_quantiles"][0] = None

    section = attack_section(effects(change))
    assert section is not None
    assert len([part for part in section.parts if isinstance(part, Figure)]) == 1


def test_what_was_not_computed_is_not_mentioned() -> None:
    assert attack_section(Effects()) is None
    assert risk_section(Effects(pac_bayes=None)) is None
    assert prediction_section(Effects(), retrained=False) is None


def test_risks_are_percentages_with_their_confidence() -> None:
    section = risk_section(effects())
    assert section is not None
    table = section.parts[1]
    assert isinstance(table, Table)
    assert table.rows[1] == ("after", "8 %", "18 %", "95 %", "36")


def test_predictions_of_few_records_are_compared_without_scores_of_their_labels() -> None:
    section = prediction_section(effects(), retrained=False)
    assert section is not None
    *paragraphs, table = section.parts
    assert isinstance(table, Table)
    assert table.rows == (
        ("forgotten", "4", "0.21", "0.42", "0.004", "–", "–"),
        ("retained", "256", "0.0031 ± 0.00031", "0.0062", "0.004", "93 % to 93 %", "5 % to 5 %"),
    )
    assert sum(table.shares) == pytest.approx(1)
    assert isinstance(paragraphs[1], Paragraph)
    assert "not that all of it was" in paragraphs[1].text


def test_after_retraining_predictions_are_those_of_a_model_that_never_saw_the_records() -> None:
    section = prediction_section(effects(), retrained=True)
    assert section is not None
    assert isinstance(section.parts[1], Paragraph)
    assert "never saw the forgotten records" in section.parts[1].text


def test_a_limit_is_never_rounded_down() -> None:
    assert [best_guess_rate(advantage) for advantage in (0.0, 1e-9, 0.00035, 1.0)] == [
        "50.000 %", "50.001 %", "50.018 %", "100.000 %",
    ]  # fmt: skip
