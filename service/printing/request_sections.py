"""What every kind of document has: who asked, and how to check what is said."""

from __future__ import annotations

from typing import Any

from service.printing.parts import Command, Facts, Figure, Paragraph, Part, Points, Seal, Section, Table, numbered_list
from service.printing.qr_figure import MOST_BYTES, qr_figure
from service.printing.statement import Statement
from service.printing.wording import NOTHING, REGULATIONS, counted, deadline, moment, number, visible

KINDS = {
    "urn:lethe:certificate:v1": "certificate",
    "urn:lethe:receipt:v1": "receipt",
    "urn:lethe:absence:v1": "absence",
}
_MOST_COMMITMENTS = 100


def regulation(predicate: dict[str, Any]) -> str:
    stated = str(predicate.get("regulation", "not stated"))
    return REGULATIONS.get(stated, visible(stated))


def who_asked(predicate: dict[str, Any]) -> str:
    people, records = len(predicate.get("subjects", ())), len(_named_records(predicate))
    said = [f"{counted(people, 'person', 'people')}, by commitment"] if people else []
    said += [f"{counted(records, 'record', 'records')}, by number"] if records else []
    return "; ".join(said) or NOTHING


def times(predicate: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Received, due, certified, and whether that was in time: as far as the statement says."""
    received, due, issued = (predicate.get(name) for name in ("received_at", "due_at", "issued_at"))
    rows = [("Received", received and moment(received)), ("Due", due and moment(due))]
    rows += [("Certified", issued and moment(issued)), ("Deadline", due and issued and deadline(issued, due))]
    return tuple((name, said) for name, said in rows if said)


def asking_section(predicate: dict[str, Any]) -> Section:
    explained = (
        "People are named here by commitments: keyed hashes that tell nobody who they are. Whoever holds a person's "
        "key can show that a commitment is theirs; once that key is destroyed, nobody can."
    )
    parts: list[Part] = [Paragraph(explained)]
    if commitments := predicate.get("subjects"):
        shown = [visible(str(commitment)) for commitment in commitments]
        parts.append(numbered_list("Those who asked", "Commitment to the person", shown, _MOST_COMMITMENTS))
    if records := _named_records(predicate):
        parts.append(Table("Records named by number", ("Model", "Record"), records, (0.7, 0.3)))
    return Section("Who asked", tuple(parts))


def not_proved_section(said: list[str]) -> Section:
    opening = "A document is worth what it does not claim. None of the following is shown by it:"
    return Section("What is not proved", (Paragraph(opening), Points(tuple(visible(item) for item in said))))


def checking_section(statement: Statement) -> Section:
    kind = KINDS[statement.kind]
    file = f"lethe-{kind}-{visible(statement.id)}.json"
    opening = (
        "This is a reading copy. What counts is the signed file, which holds the same facts. Anybody can check it, "
        "without a network and years from now, with either of these commands:"
    )
    keys = (
        "KEYS is the file of public keys that the service publishes, for anybody, at /api/v1/log/keys: keep it beside "
        "the certificates. The second command needs only Python, its package cryptography, and the one file that "
        "`lethe verifier` writes."
    )
    commands = (Command(f"lethe verify {file} --key KEYS"), Command(f"python lethe-verify.pyz {file} --key KEYS"))
    facts = [("Signed by key", " ".join(statement.key_ids)), ("Statement, SHA-256", statement.digest)]
    seal = Seal(_qr_code(statement), Facts((*facts, *_log_facts(statement))))
    return Section("How to check this", (Paragraph(opening), *commands, Paragraph(keys), seal))


def _named_records(predicate: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """A certificate speaks of one model, and so gives numbers alone; a receipt names the model of each."""
    model = str(predicate.get("model", {}).get("id", ""))
    rows = [(model, record) for record in predicate.get("named_records", ())]
    asked = predicate.get("records")
    if isinstance(asked, list):
        rows += [(str(record["model"]), record["record"]) for record in asked]
    return tuple((visible(name), number(record)) for name, record in rows)


def _log_facts(statement: Statement) -> tuple[tuple[str, str], ...]:
    """Where the statement stands in the log, or the promise that it will: a receipt is given before it does."""
    if statement.logged is not None:
        origin, size, root = (visible(line) for line in statement.logged.note)
        place = f"number {statement.logged.index:,}; with it the log {origin} had {size} entries"
        return (("Entry in the log", place), ("Root of the log", root))
    promise = statement.predicate.get("log")
    if not promise:
        return (("Entry in the log", "promised: this copy was made before the entry was published"),)
    within = counted(promise["within_seconds"], "second", "seconds")
    said = f"promised in {visible(promise['origin'])}, within {within} of receipt"
    return (("Entry in the log", said), ("Its leaf", visible(promise["leaf"])))


def _qr_code(statement: Statement) -> Figure:
    note = statement.logged.checkpoint if statement.logged else None
    if note is None or len(note.encode()) > MOST_BYTES:
        meant = "the SHA-256 of the signed statement"
        return Figure(qr_figure(statement.digest), f"QR code: {meant}.", f"A QR code that holds {meant}.")
    caption = "QR code: the checkpoint of the log. Compare it with one that others kept: no rewritten log fits both."
    return Figure(
        qr_figure(note), caption, "A QR code that holds the checkpoint of the log: its origin, size and root."
    )
