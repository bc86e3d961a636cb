"""Sections of a certificate of destruction: which model ended, with which records, and why."""

from __future__ import annotations

from service.printing.certificate_sections import model_facts, version_name
from service.printing.parts import Facts, Paragraph, Section, numbered_list
from service.printing.wording import format_count, show_hidden
from vocabulary.certificate import DestructionPredicate, DestructionStatement

_MAX_COMMITMENTS = 20


def destroyed_section(statement: DestructionStatement) -> Section:
    predicate = statement.predicate
    last = tuple(
        (f"Last version, {version_name(item.name)}, SHA-256", item.digest.sha256) for item in statement.subject
    )
    facts = Facts((*model_facts(predicate.model), *last, *_data_facts(predicate)))
    commitments = predicate.forgotten.commitments
    records = numbered_list("Records destroyed", "Commitment to the record", commitments, _MAX_COMMITMENTS)
    return Section("What was destroyed", (Paragraph(_describe_destruction(predicate)), facts, records))


def describe_destroyed(predicate: DestructionPredicate, name: str) -> str:
    """Return the summary: the request's own records, and all that the model still had."""
    own = format_count(len(predicate.forgotten.commitments), "record", "records")
    return f"the model “{name}” with all {predicate.records.before:,} records that it had; {own} of this request"


def _describe_destruction(predicate: DestructionPredicate) -> str:
    count = format_count(len(predicate.forgotten.commitments), "of its records belongs", "of its records belong")
    return (
        f"{show_hidden(predicate.statement)} {count} to this request. The signed file proves that each was in the data "
        "set. Nothing is left that a bound could be about."
    )


def _data_facts(predicate: DestructionPredicate) -> list[tuple[str, str]]:
    dataset = predicate.dataset.before
    facts = [("Data, SHA-256", dataset.digest)]
    if dataset.root is not None and dataset.records is not None:
        facts.append(("Data, root", f"{dataset.root} over {format_count(dataset.records, 'record', 'records')}"))
    return facts
