from __future__ import annotations

from service.printing.parts import Command, Seal, Table
from service.printing.request_sections import asking_section, checking_section, times, who_asked
from service.printing.statement import read_bundle
from tests.service.printing.statements import SIGNER, certificate, digest, receipt, request


def seal_of(bundle: str) -> Seal:
    return next(part for part in checking_section(read_bundle(bundle)).parts if isinstance(part, Seal))


def test_every_commitment_is_listed() -> None:
    commitments = sorted(digest(n) for n in range(100))
    table = asking_section({**request(), "subjects": commitments}).parts[1]
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == commitments


def test_records_are_listed_with_their_model() -> None:
    asked = {**request(), "subjects": [], "records": [{"model": "m-1", "record": 1700}]}
    assert who_asked(asked) == "1 record, by number"
    table = asking_section(asked).parts[1]
    assert isinstance(table, Table)
    assert table.rows == (("m-1", "1,700"),)


def test_only_times_that_are_stated_are_told() -> None:
    assert [name for name, _ in times(request())] == ["Received"]


def test_the_commands_name_the_file_as_it_is_downloaded() -> None:
    commands = [part.text for part in checking_section(read_bundle(certificate())).parts if isinstance(part, Command)]
    file = "lethe-certificate-07f5d746-b099-4e94-8f98-b5a81efe3cc8.json"
    assert commands == [f"lethe verify {file} --key KEYS", f"python lethe-verify.pyz {file} --key KEYS"]


def test_the_place_in_the_log_is_told() -> None:
    facts = dict(seal_of(certificate()).facts.rows)
    assert facts["Signed by key"] == SIGNER.key_id
    assert facts["Entry in the log"] == "number 41; with it the log lethe.example.org/log had 128 entries"
    assert "checkpoint" in seal_of(certificate()).figure.caption


def test_an_entry_that_is_not_there_yet_is_promised() -> None:
    seal = seal_of(certificate(logged=False))
    assert dict(seal.facts.rows)["Entry in the log"].startswith("promised")
    assert "SHA-256 of the signed statement" in seal.figure.caption


def test_a_receipt_says_what_was_promised() -> None:
    promise = {"origin": "lethe.example.org/log", "leaf": digest("leaf"), "within_seconds": 2}
    facts = dict(seal_of(receipt(lambda content: content.update(log=promise), logged=False)).facts.rows)
    assert facts["Entry in the log"] == "promised in lethe.example.org/log, within 2 seconds of receipt"
    assert facts["Its leaf"] == digest("leaf")
