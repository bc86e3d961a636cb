"""The words of each kind of document."""

from __future__ import annotations

from typing import Any

import pytest

from service.printing.document import make_document
from service.printing.parts import Document
from service.printing.statement import Unprintable
from tests.bundles import sign
from tests.service.printing.statements import absence, certificate, earlier_content, receipt


def summary(document: Document) -> dict[str, str]:
    return dict(document.summary.rows)


def test_the_first_page_of_a_certificate_has_the_essentials() -> None:
    document = make_document(certificate())
    assert document.title == "Certificate of forgetting"
    assert "every condition of the bound was checked" in document.lead
    assert "right at most 50.018 % of the time" in document.lead
    assert summary(document) == {
        "Request": "0d3f98dc-ba30-4d8c-b54d-905bd2c7d72a",
        "Data subjects": "1 person, by commitment; 1 record, by number",
        "Regulation": "GDPR: General Data Protection Regulation of the European Union",
        "Received": "16 November 2026, 08:00:00 UTC",
        "Due": "16 December 2026, 08:00:00 UTC",
        "Certified": "20 November 2026, 08:00:05 UTC",
        "Deadline": "met: certified 25 days before it was due",
        "Removed": "2 records, from the model “demo”; 4 of 40 records in the whole batch",
        "Bound": "2.500e-07 nats: 25 % of the 1.000e-06 nats that the policy allows",
        "Level": "proved: every condition of the bound was checked, including rounding",
        "Verification": "offline, with the signed file and a public key: see the last section",
    }
    assert document.picture is not None


def test_an_estimate_is_not_called_a_proof() -> None:
    def change(content: dict[str, Any]) -> None:
        content["bound"].update(level="estimated", interval=[1e-9, 2.5e-7])

    document = make_document(certificate(change))
    assert "This is not a proof. If the estimate holds," in document.lead
    assert "not a proof" in summary(document)["Level"]


def test_the_first_page_says_which_reference_the_samples_have() -> None:
    def refer_to(reference: str) -> Document:
        return make_document(certificate(lambda content: content["bound"].update(reference_kind=reference)))

    stored = refer_to("stored draws")
    assert summary(stored)["Reference"] == "the stored draws (weaker promise)"
    assert "a weaker promise, which the policy chose." in stored.lead
    posterior = refer_to("posterior")
    assert summary(posterior)["Reference"] == "the posterior given the remaining records"
    assert "weaker" not in posterior.lead


def test_a_retrained_model_has_nothing_to_bound() -> None:
    document = make_document(certificate(lambda content: content["bound"].update(level="retrained", epsilon=0)))
    assert document.lead.endswith("It was retrained from scratch without them.")
    assert summary(document)["Bound"] == "0 nats: there is nothing to bound; the policy allows 1.000e-06 nats"


def test_an_earlier_statement_is_printed_without_what_it_does_not_say() -> None:
    document = make_document(certificate(content=earlier_content(), logged=False))
    assert summary(document)["Removed"] == "4 of 40 records, from the model “without a name”"
    assert {"Due", "Deadline"}.isdisjoint(summary(document))
    titles = [section.title for section in document.sections]
    assert titles == [
        "1. Data subjects",
        "2. What was removed",
        "3. Distance to a model that never saw the records",
        "4. Conditions checked",
        "5. How to verify this document",
    ]


def test_a_receipt_promises_no_more_than_it_may() -> None:
    document = make_document(receipt())
    assert document.lead.startswith("This deletion request was received and is stored durably.")
    assert [section.title for section in document.sections][1] == "2. What is not proved"
    assert document.picture is None


def test_an_absence_says_what_was_searched_and_found() -> None:
    document = make_document(absence())
    assert summary(document)["Searched"] == "3 models in the store"
    assert summary(document)["Outcome"] == "No model holds records of the subjects."
    assert summary(document)["Regulation"].startswith("CCPA")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Unprintable, match="newer"):
        make_document(sign("urn:lethe:promise:v9", [], {}))


@pytest.mark.parametrize("member", ["bound", "policy", "records", "deletion"])
def test_a_statement_that_lacks_what_it_must_say_is_refused(member: str) -> None:
    with pytest.raises(Unprintable, match=member):
        make_document(certificate(lambda content: content.pop(member)))


def test_a_level_that_supports_no_claim_is_refused() -> None:
    with pytest.raises(Unprintable, match=r"bound\.level"):
        make_document(certificate(lambda content: content["bound"].update(level="none")))
