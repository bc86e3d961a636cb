from __future__ import annotations

from service.printing.parts import Command, Seal, Table
from service.printing.request_sections import describe_subjects, subjects_section, time_facts, verification_section
from service.printing.statement import read_bundle
from tests.bundles import SIGNER
from tests.service.printing.statements import certificate, digest, receipt, request
from vocabulary.certificate import ReceiptPredicate, Replaced


def receipt_predicate(**members: object) -> ReceiptPredicate:
    return ReceiptPredicate.model_validate({**request(), **members})


def seal_of(bundle: str) -> Seal:
    return next(part for part in verification_section(read_bundle(bundle)).parts if isinstance(part, Seal))


def test_every_commitment_is_listed() -> None:
    commitments = sorted(digest(n) for n in range(100))
    table = subjects_section(receipt_predicate(subjects=commitments)).parts[1]
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == commitments


def test_records_are_listed_with_their_model() -> None:
    predicate = receipt_predicate(subjects=[], records=[{"model": "m-1", "record": 1700}])
    assert describe_subjects(predicate) == "1 record, by number"
    table = subjects_section(predicate).parts[1]
    assert isinstance(table, Table)
    assert table.rows == (("m-1", "1,700"),)


def test_only_times_that_are_stated_are_printed() -> None:
    assert [name for name, _ in time_facts(receipt_predicate())] == ["Received"]


def test_a_certificate_that_replaces_another_names_it() -> None:
    predicate = read_bundle(certificate()).statement.predicate
    assert "Replaces" not in dict(time_facts(predicate))
    replaced = Replaced(certificate="c-old", reason="Its key was revoked.", statement="0" * 64)
    facts = dict(time_facts(predicate.model_copy(update={"replaces": replaced})))
    assert facts["Replaces"] == "c-old, with the same facts. Its key was revoked."


def test_the_commands_name_the_file_as_it_is_downloaded() -> None:
    commands = [
        part.text for part in verification_section(read_bundle(certificate())).parts if isinstance(part, Command)
    ]
    file = "lethe-certificate-07f5d746-b099-4e94-8f98-b5a81efe3cc8.json"
    assert commands == [f"lethe verify {file} --key KEYS", f"python lethe-verify.pyz {file} --key KEYS"]


def test_the_place_in_the_log_is_printed() -> None:
    facts = dict(seal_of(certificate()).facts.rows)
    assert facts["Signed by key"] == SIGNER.key_id
    assert facts["Log entry"] == "number 41 in the log lethe.example.org/log, which then had 128 entries"
    assert "checkpoint" in seal_of(certificate()).figure.caption


def test_an_entry_that_is_not_there_yet_is_promised() -> None:
    seal = seal_of(certificate(logged=False))
    assert dict(seal.facts.rows)["Log entry"].startswith("promised")
    assert "SHA-256 of the signed statement" in seal.figure.caption


def test_a_receipt_says_what_was_promised() -> None:
    facts = dict(seal_of(receipt(logged=False)).facts.rows)
    assert facts["Log entry"] == "promised in lethe.example.org/log within 2 seconds of receipt"
    assert facts["Leaf hash of the entry"] == digest("leaf")
