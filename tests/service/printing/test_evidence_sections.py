from __future__ import annotations

from service.printing.evidence_sections import attack_section, right_at_most, risk_section
from service.printing.parts import Figure, Paragraph, Table
from tests.service.printing.statements import forgotten


def test_an_attack_is_told_drawn_and_tabled() -> None:
    section = attack_section(forgotten()["effects"])
    assert section is not None
    assert len([part for part in section.parts if isinstance(part, Figure)]) == 2
    draws, attacks = (part for part in section.parts if isinstance(part, Table))
    assert draws.rows == (("1", "2.500e-07", "3.500e-04", "50.018 %"),)
    assert attacks.rows[1] == ("forgotten, after", "0.507", "0.02", "0.31", "0.12")
    told = [part.text for part in section.parts if isinstance(part, Paragraph)]
    assert "31 % of the never-seen records; before, it was 0.4 %" in told[-1]


def test_without_never_seen_records_it_says_that_there_was_no_attack() -> None:
    effects = forgotten()["effects"]
    for version in ("before", "after"):
        effects["membership"][version].update(forgotten=None, retained=None, forgotten_quantiles=[])
    section = attack_section({"membership": effects["membership"]})
    assert section is not None
    (told,) = section.parts
    assert isinstance(told, Paragraph)
    assert told.text.startswith("No membership-inference attack was made")


def test_nothing_is_said_of_what_was_not_computed() -> None:
    assert attack_section({}) is None
    assert risk_section({"pac_bayes": None}) is None


def test_risks_are_percentages_with_their_confidence() -> None:
    section = risk_section(forgotten()["effects"])
    assert section is not None
    table = section.parts[1]
    assert isinstance(table, Table)
    assert table.rows[1] == ("after", "8 %", "18 %", "95 %", "36")


def test_a_limit_is_never_rounded_down() -> None:
    assert [right_at_most(advantage) for advantage in (0.0, 1e-9, 0.00035, 1.0)] == [
        "50.000 %", "50.001 %", "50.018 %", "100.000 %",
    ]  # fmt: skip
