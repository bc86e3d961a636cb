from __future__ import annotations

from service.printing.certificate_sections import bound_section, conditions_section, removed_section, rungs_section
from service.printing.parts import Facts, Paragraph, Section, Table
from service.printing.statement import read_bundle
from tests.service.printing.statements import certificate, digest, forgotten


def facts_of(section: Section) -> dict[str, str]:
    return dict(next(part for part in section.parts if isinstance(part, Facts)).rows)


def opening_of(section: Section) -> str:
    opening = section.parts[0]
    assert isinstance(opening, Paragraph)
    return opening.text


def tables_of(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def test_what_was_removed_is_told_of_the_request_and_of_its_batch() -> None:
    section = removed_section(read_bundle(certificate()))
    opening = section.parts[0]
    assert isinstance(opening, Paragraph)
    assert opening.text.startswith("4 records were taken out")
    assert "2 of them are this request's" in opening.text
    facts = facts_of(section)
    assert facts["version 1, SHA-256"] == digest(1)
    assert facts["Data before, root"] == f"{digest('before!')} over 40 records"


def test_digests_of_older_statements_are_told_too() -> None:
    old = certificate(lambda content: content.update(dataset={"before": digest("b"), "after": digest("a")}))
    facts = facts_of(removed_section(read_bundle(old)))
    assert (facts["Data before, SHA-256"], facts["Data after, SHA-256"]) == (digest("b"), digest("a"))


def test_of_many_forgotten_records_the_first_are_listed() -> None:
    many = {"commitments": [digest(n) for n in range(200)]}
    (table,) = tables_of(removed_section(read_bundle(certificate(lambda content: content.update(forgotten=many)))))
    assert len(table.rows) == 21
    assert table.rows[-1] == ("–", "and 180 more, in the signed file")


def test_an_interval_is_told_where_there_is_one() -> None:
    content = forgotten()
    assert "Interval, 95 %" not in facts_of(bound_section(content))
    content["bound"]["interval"] = [1e-9, 2.5e-7]
    assert facts_of(bound_section(content))["Interval, 95 %"] == "1.000e-09 nats to 2.500e-07 nats"


def test_an_estimate_is_not_called_a_bound_and_that_of_a_network_no_divergence() -> None:
    content = forgotten()
    content["bound"]["level"] = "estimated"
    assert {"Estimate (epsilon)", "What is estimated"} < facts_of(bound_section(content)).keys()
    assert "A divergence of nothing" in opening_of(bound_section(content))
    content["model"]["family"] = "mlp"
    assert "of which no divergence is bounded" in opening_of(bound_section(content))
    assert "bound" not in opening_of(conditions_section(content))
    content["bound"]["level"] = "retrained"
    assert "A divergence of nothing" in opening_of(bound_section(content))


def test_conditions_and_constants_are_told_with_their_numbers() -> None:
    conditions, constants = tables_of(conditions_section(forgotten()))
    assert conditions.rows == (("it curves upwards", "262.5", "0", "holds"),)
    assert constants.rows == (("gaussian.lambda_min", "3.25"), ("lipschitz", "2.507e+04"), ("unevenness", "–"))


def test_each_way_is_told_with_what_it_reached() -> None:
    section = rungs_section(forgotten())
    assert section is not None
    (table,) = tables_of(section)
    assert [row[2] for row in table.rows] == ["none; at least 1.550e-01 nats", "failed: it is NaN", "2.500e-07 nats"]
    assert [row[4] for row in table.rows] == ["7 ms", "2.0 s", "4.0 s"]
