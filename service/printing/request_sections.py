"""Sections that every kind of document has: data subjects, what is not proved, and how to verify the document."""

from __future__ import annotations

from collections.abc import Sequence

from service.printing.parts import Command, Facts, Figure, Paragraph, Part, Points, Seal, Section, Table, numbered_list
from service.printing.qr_figure import MAX_BYTES, qr_figure
from service.printing.statement import SignedStatement, checkpoint_lines
from service.printing.wording import (
    DASH,
    REGULATIONS,
    describe_deadline,
    format_count,
    format_number,
    format_time,
    show_hidden,
)
from vocabulary.certificate import (
    AbsenceStatement,
    CertificatePredicate,
    CertificateStatement,
    DestructionPredicate,
    DestructionStatement,
    Predicate,
    ReceiptPredicate,
    ReceiptStatement,
    Replaced,
    RequestFacts,
    Statement,
)

_MAX_COMMITMENTS = 100


def describe_regulation(predicate: Predicate) -> str:
    regulation = predicate.regulation or "not stated"
    return REGULATIONS.get(regulation, show_hidden(regulation))


def describe_subjects(predicate: Predicate) -> str:
    people, records = len(predicate.subjects), len(_named_records(predicate))
    groups = [f"{format_count(people, 'person', 'people')}, by commitment"] if people else []
    groups += [f"{format_count(records, 'record', 'records')}, by number"] if records else []
    return "; ".join(groups) or DASH


def time_facts(predicate: Predicate) -> tuple[tuple[str, str], ...]:
    """Return the times that the statement gives, whether the deadline was met, and what it replaces."""
    facts = [("Received", format_time(predicate.received_at))]
    if isinstance(predicate, ReceiptPredicate):
        return tuple(facts)
    due_at = predicate.due_at if isinstance(predicate, RequestFacts) else None
    facts += [("Due", format_time(due_at))] if due_at else []
    facts.append(("Certified", format_time(predicate.issued_at)))
    facts += [("Deadline", describe_deadline(predicate.issued_at, due_at))] if due_at else []
    facts += [("Replaces", _describe_replaced(predicate.replaces))] if predicate.replaces else []
    return tuple(facts)


def subjects_section(predicate: Predicate) -> Section:
    explanation = (
        "People are identified here by commitments: keyed hashes that do not reveal who they are. The holder of a "
        "person's key can show that a commitment belongs to that person. Once the key is destroyed, nobody can."
    )
    parts: list[Part] = [Paragraph(explanation)]
    if predicate.subjects:
        parts.append(numbered_list("People", "Commitment to the person", predicate.subjects, _MAX_COMMITMENTS))
    if records := _named_records(predicate):
        parts.append(Table("Records named by number", ("Model", "Record"), records, (0.7, 0.3)))
    return Section("Data subjects", tuple(parts))


def not_proved_section(sentences: Sequence[str]) -> Section:
    opening = "This document does not show any of the following:"
    return Section("What is not proved", (Paragraph(opening), Points(tuple(map(show_hidden, sentences)))))


def verification_section(signed: SignedStatement) -> Section:
    file = f"lethe-{_file_kind(signed.statement)}-{show_hidden(signed.id)}.json"
    opening = (
        "This is a reading copy. Only the signed file is binding; it holds the same facts. Anybody can verify it, "
        "offline and years from now, with either of these commands:"
    )
    keys = (
        "KEYS is the file of public keys that the service publishes at /api/v1/log/keys; keep it with the "
        "certificates. The second command needs only Python, its package cryptography, and the file that "
        "`lethe verifier` writes."
    )
    commands = (Command(f"lethe verify {file} --key KEYS"), Command(f"python lethe-verify.pyz {file} --key KEYS"))
    facts = [("Signed by key", signed.key_id), ("Statement, SHA-256", signed.digest)]
    seal = Seal(_qr_code(signed), Facts((*facts, *_log_facts(signed))))
    return Section("How to verify this document", (Paragraph(opening), *commands, Paragraph(keys), seal))


def _describe_replaced(replaced: Replaced) -> str:
    return f"{show_hidden(replaced.certificate)}, with the same facts. {show_hidden(replaced.reason)}"


def _file_kind(statement: Statement) -> str:
    """Return the word that the names of downloaded files have."""
    match statement:
        case CertificateStatement() | DestructionStatement():
            return "certificate"
        case ReceiptStatement():
            return "receipt"
        case AbsenceStatement():
            return "absence"


def _named_records(predicate: Predicate) -> tuple[tuple[str, str], ...]:
    """Return model and number of each record. A certificate is about one model and gives numbers alone."""
    if isinstance(predicate, CertificatePredicate | DestructionPredicate):
        model = predicate.model.id if predicate.model else ""
        records = [(model, record) for record in predicate.named_records]
    else:
        records = [(named.model, named.record) for named in predicate.records]
    return tuple((show_hidden(model), format_number(record)) for model, record in records)


def _log_facts(signed: SignedStatement) -> tuple[tuple[str, str], ...]:
    """Return the place in the log, or the promise of one: a receipt is signed before it has a place."""
    if signed.log is not None:
        origin, size, root = (show_hidden(line) for line in checkpoint_lines(signed.log))
        entry = f"number {signed.log.index:,} in the log {origin}, which then had {size} entries"
        return (("Log entry", entry), ("Log root", root))
    predicate = signed.statement.predicate
    if not isinstance(predicate, ReceiptPredicate) or predicate.log is None:
        return (("Log entry", "promised: this copy was made before the entry was published"),)
    within = format_count(predicate.log.within_seconds, "second", "seconds")
    promise = f"promised in {show_hidden(predicate.log.origin)} within {within} of receipt"
    return (("Log entry", promise), ("Leaf hash of the entry", predicate.log.leaf))


def _qr_code(signed: SignedStatement) -> Figure:
    checkpoint = signed.log.checkpoint if signed.log else None
    if checkpoint is None or len(checkpoint.encode()) > MAX_BYTES:
        content = "the SHA-256 of the signed statement"
        return Figure(qr_figure(signed.digest), f"QR code: {content}.", f"QR code that holds {content}.")
    caption = "QR code: the checkpoint of the log. Compare it with copies kept by others: a rewritten log matches none."
    description = "QR code that holds the checkpoint of the log: its origin, size and root."
    return Figure(qr_figure(checkpoint), caption, description)
