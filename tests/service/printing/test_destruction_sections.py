from __future__ import annotations

from service.printing.destruction_sections import describe_destroyed, destroyed_section
from service.printing.document import make_document
from service.printing.parts import Facts, Paragraph, Table
from service.printing.statement import read_bundle
from tests.bundles import FORGOTTEN, RECORDS
from tests.corpus.drafts import KINDS
from vocabulary.certificate import DestructionStatement


def statement() -> DestructionStatement:
    read = read_bundle(KINDS["destruction"]().write().decode()).statement
    assert isinstance(read, DestructionStatement)
    return read


def test_the_section_says_what_ended_and_why() -> None:
    opening, facts, table = destroyed_section(statement()).parts
    assert isinstance(opening, Paragraph)
    assert opening.text.startswith("The model held no other records and was destroyed. 4 of its records belong")
    assert isinstance(facts, Facts)
    rows = dict(facts.rows)
    assert rows["Model"] == statement().predicate.model.name
    assert any(name.startswith("Last version") for name in rows)
    assert f"over {len(RECORDS)} records" in rows["Data, root"]
    assert isinstance(table, Table)
    assert len(table.rows) == len(FORGOTTEN)


def test_the_summary_counts_the_request_and_the_model() -> None:
    text = describe_destroyed(statement().predicate, "demo")
    assert text == "the model “demo” with all 40 records that it had; 4 records of this request"


def test_the_document_is_a_certificate_of_destruction() -> None:
    document = make_document(KINDS["destruction"]().write().decode())
    assert document.title == "Certificate of destruction"
    assert "was destroyed with all of its files" in document.lead
    titles = [section.title.partition(". ")[2] for section in document.sections]
    assert "What was destroyed" in titles
    assert "What is not proved" in titles
    assert dict(document.summary.rows)["Deadline"].startswith("met")
    assert document.footer == "Certificate of destruction c-1"
