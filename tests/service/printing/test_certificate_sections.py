from __future__ import annotations

from typing import Any

from service.printing.certificate_sections import bound_section, conditions_section, removed_section, rungs_section
from service.printing.parts import Facts, Paragraph, Section, Table
from service.printing.statement import read_bundle
from tests.service.printing.statements import Change, certificate, digest, forgotten_proof, predicate
from vocabulary.certificate import CertificateStatement


def facts_of(section: Section) -> dict[str, str]:
    return dict(next(part for part in section.parts if isinstance(part, Facts)).rows)


def opening_of(section: Section) -> str:
    opening = section.parts[0]
    assert isinstance(opening, Paragraph)
    return opening.text


def tables_of(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def removed(change: Change = lambda _: None) -> Section:
    statement = read_bundle(certificate(change)).statement
    assert isinstance(statement, CertificateStatement)
    return removed_section(statement)


def at_level(level: str, family: str = "gaussian-mixture") -> Change:
    def change(content: dict[str, Any]) -> None:
        content["bound"]["level"] = level
        content["model"]["family"] = family

    return change


def test_the_removed_records_of_the_request_and_of_its_batch_are_counted() -> None:
    section = removed()
    assert opening_of(section).startswith("4 records were removed")
    assert "2 of them belong to this request" in opening_of(section)
    facts = facts_of(section)
    assert facts["version 1, SHA-256"] == digest(1)
    assert facts["Data before, root"] == f"{digest('before!')} over 40 records"


def test_digests_of_earlier_statements_are_printed() -> None:
    facts = facts_of(removed(lambda content: content.update(dataset={"before": digest("b"), "after": digest("a")})))
    assert (facts["Data before, SHA-256"], facts["Data after, SHA-256"]) == (digest("b"), digest("a"))


def test_of_many_forgotten_records_the_first_are_listed() -> None:
    (table,) = tables_of(removed(lambda content: content.update(forgotten=forgotten_proof(200))))
    assert len(table.rows) == 21
    assert table.rows[-1] == ("–", "and 180 more, in the signed file")


def test_an_interval_is_printed_where_there_is_one() -> None:
    assert "Interval, 95 %" not in facts_of(bound_section(predicate()))
    with_interval = predicate(lambda content: content["bound"].update(interval=[1e-9, 2.5e-7]))
    assert facts_of(bound_section(with_interval))["Interval, 95 %"] == "1.000e-09 nats to 2.500e-07 nats"


def test_what_is_known_of_the_reference_is_printed() -> None:
    earlier = facts_of(bound_section(predicate()))
    assert not {"Reference to optimum of ELBO", "Fresh starts"} & earlier.keys()
    starts = {"tried": 4, "lower": 2, "lowest": 12.0, "rows": 36}
    stated = predicate(lambda content: content["bound"].update(elbo_distance=1.5e-4, fresh_starts=starts))
    facts = facts_of(bound_section(stated))
    assert facts["Reference to optimum of ELBO"] == "1.500e-04 nats, estimated; part of no bound"
    assert facts["Fresh starts"] == "2 of 4 ended lower, by up to 1.200e+01 nats"
    none = {"tried": 4, "lower": 0, "lowest": 0.0, "rows": 36}
    exact = predicate(lambda content: content["bound"].update(elbo_distance=0.0, fresh_starts=none))
    facts = facts_of(bound_section(exact))
    assert facts["Reference to optimum of ELBO"] == "0 nats: the energy is the exact ELBO"
    assert facts["Fresh starts"] == "none of 4 ended lower"


def test_an_estimate_is_not_called_a_bound_and_that_of_a_network_no_divergence() -> None:
    estimate = bound_section(predicate(at_level("estimated")))
    assert {"Estimate (epsilon)", "What is estimated"} < facts_of(estimate).keys()
    assert "The distance is a divergence" in opening_of(estimate)
    network = predicate(at_level("estimated", "mlp"))
    assert "for which no divergence is bounded" in opening_of(bound_section(network))
    assert "bound" not in opening_of(conditions_section(network))
    retrained = predicate(at_level("retrained", "mlp"))
    assert "The distance is a divergence" in opening_of(bound_section(retrained))


def test_samples_of_a_network_are_compared_with_the_reference_that_is_named() -> None:
    def change(content: dict[str, Any]) -> None:
        at_level("estimated", "mlp")(content)
        content["model"]["posterior"] = "samples"
        content["bound"]["reference_kind"] = content["policy"]["reference"] = "stored draws"

    section = bound_section(predicate(change))
    assert "The distance is a divergence" in opening_of(section)
    assert "This is a weaker promise than the distance to the posterior" in opening_of(section)
    assert facts_of(section)["Kind of reference"] == "the stored draws (weaker promise)"
    assert facts_of(section)["Policy"].endswith("level proved or stronger; reference: stored draws or stronger")
    posterior = bound_section(predicate(lambda content: content["bound"].update(reference_kind="posterior")))
    assert "weaker promise" not in opening_of(posterior)
    assert facts_of(posterior)["Kind of reference"] == "the posterior given the remaining records"
    assert "Kind of reference" not in facts_of(bound_section(predicate()))


def test_conditions_and_constants_are_printed_with_their_numbers() -> None:
    conditions, constants = tables_of(conditions_section(predicate()))
    assert conditions.rows == (("it curves upwards", "262.5", "0", "holds"),)
    values = dict(constants.rows)
    assert values["gaussian.kl"] == "3.25"
    assert values["effective_draws"] == "2.507e+04"
    assert values["unevenness"] == "–"


def test_constants_in_lists_are_printed_one_by_one() -> None:
    members = {"retrained": [{"member": 3, "rows": 7}], "unchanged": [{"sha256": "ab"}, {"sha256": "cd"}]}
    _, constants = tables_of(conditions_section(predicate(lambda content: content["bound"].update(constants=members))))
    assert constants.rows == (
        ("retrained.0.member", "3"),
        ("retrained.0.rows", "7"),
        ("unchanged.0.sha256", "ab"),
        ("unchanged.1.sha256", "cd"),
    )


def test_constants_of_an_earlier_version_are_printed_under_their_names() -> None:
    earlier = predicate(lambda content: content["bound"].update(constants={"slope": 0.5, "inner": {"width": 2}}))
    _, constants = tables_of(conditions_section(earlier))
    assert constants.rows == (("inner.width", "2"), ("slope", "0.5"))


def test_each_method_is_printed_with_its_result() -> None:
    section = rungs_section(predicate())
    assert section is not None
    (table,) = tables_of(section)
    assert [row[2] for row in table.rows] == ["none; at least 1.550e-01 nats", "failed: it is NaN", "2.500e-07 nats"]
    assert [row[4] for row in table.rows] == ["7 ms", "2.0 s", "4.0 s"]
