"""A statement is where the log says it is, and the log has not been rewritten since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lethe.verify import Rejected, Unconfirmed, verify
from service.store.signing.statements import StatementSigner
from tests.bundles import (
    SIGNER,
    LogInMemory,
    certificate,
    entry_of,
    key_list,
    logged,
    predicate,
    sign,
    signed_certificate,
)
from tests.corpus.drafts import KINDS
from tests.lethe.verify.test_checkpoints import FIRST, SECOND
from vocabulary.certificate import ABSENCE_TYPE, RECEIPT_TYPE

KEY = SIGNER.public_pem.encode()


def test_a_certificate_without_its_place_is_rejected() -> None:
    with pytest.raises(Rejected, match="does not show its place in the log"):
        verify(signed_certificate(predicate()).encode(), KEY)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"action": "certificate.issued", "concerns": "c-2"}, "not that of this certificate"),
        ({"action": "deletion.received", "concerns": "c-1"}, "not that of this certificate"),
    ],
)
def test_another_entry_of_the_log_is_rejected(entry: dict[str, str], reason: str) -> None:
    signed = signed_certificate(predicate())
    with pytest.raises(Rejected, match=reason):
        verify(logged(signed, entry_of(signed, **entry)), KEY)


def test_the_entry_of_another_statement_is_rejected() -> None:
    """Both are signed by us and logged; only they do not belong together."""
    first, second = signed_certificate(predicate()), signed_certificate({**predicate(), "seconds": 2})
    with pytest.raises(Rejected, match="of another statement"):
        verify(logged(first, entry_of(second, "certificate.issued", "c-1")), KEY)


def test_an_absence_is_accepted_with_its_place_only() -> None:
    content = {
        "deletion": "d-1",
        "regulation": "gdpr",
        "subjects": [],
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:00.000Z",
        "models_in_store": 3,
        "statement": "No model holds records of the subjects.",
        "not_proved": [],
        "software": {"name": "lethe", "version": "0.1.0", "sources_sha256": "0" * 64},
    }
    signed = sign(ABSENCE_TYPE, _nobody(), content)
    with pytest.raises(Unconfirmed, match="download it again"):
        verify(signed.encode(), KEY)
    assert "records it" in verify(logged(signed, entry_of(signed, "absence.certified", "d-1")), KEY).checks[-1]


def changed_place(**change: Any) -> bytes:
    content = json.loads(certificate())
    content["log"].update(change)
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"index": 4}, "does not lead from the entry"),
        ({"index": 9}, "beyond the end"),
        ({"index": True}, "not a whole number"),
        ({"index": -1}, "not a whole number"),
        ({"index": 5.0}, "not in canonical form"),
        ({"index": 5.5}, "not a whole number"),
        ({"proof": []}, "too short"),
        ({"proof": ["0" * 64] * 9}, "too long"),
        ({"proof": "no"}, "proof is missing"),
        ({"proof": ["0" * 64] * 4}, "does not lead from the entry"),
        ({"entry": 5}, "entry is missing"),
        ({"entry": "{}"}, "details is missing"),
        ({"checkpoint": ""}, "not a signed note"),
        ({"more": 1}, "expected members"),
    ],
)
def test_a_place_that_was_changed_is_rejected(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(changed_place(**change), KEY)


def later(leaves: list[bytes], old: int, signer: StatementSigner = SIGNER) -> bytes:
    """Return a consistency proof as the API does."""
    log, new = LogInMemory(leaves), len(leaves)
    proof = [node.hex() for node in log.tree.consistency(old, new)]
    return json.dumps({"old": old, "new": new, "proof": proof, "checkpoint": log.note(new, signer)}).encode()


def log_of_certificate(size: int) -> tuple[bytes, list[bytes]]:
    """A certificate in a log of nine entries, and what the log has become since."""
    content = certificate()
    leaves = [b"entry %d" % number for number in range(size)]
    leaves[5] = json.loads(content)["log"]["entry"].encode()
    return content, leaves


@pytest.mark.parametrize("size", [9, 10, 16, 500])
def test_a_later_checkpoint_confirms_it(size: int) -> None:
    content, leaves = log_of_certificate(size)
    verified = verify(content, KEY, later=later(leaves, 9))
    assert f"the log at {size} entries" in verified.checks[-1]


@pytest.mark.parametrize("rewritten", range(9))
def test_a_log_that_was_rewritten_is_found_out(rewritten: int) -> None:
    content, leaves = log_of_certificate(12)
    leaves[rewritten] = b"something else"
    with pytest.raises(Rejected, match="rewritten"):
        verify(content, KEY, later=later(leaves, 9))


def test_a_log_that_was_cut_off_or_is_another_is_found_out() -> None:
    content, leaves = log_of_certificate(8)
    with pytest.raises(Rejected, match="is not later"):
        verify(content, KEY, later=later(leaves, 8))
    content, leaves = log_of_certificate(12)
    with pytest.raises(Rejected, match="another log"):
        verify(
            content,
            KEY,
            later=later(leaves, 9, StatementSigner(bytes(range(32)), bytes(range(32, 64)), "elsewhere/lethe")),
        )


def test_a_required_witness_may_cosign_the_later_checkpoint_too() -> None:
    draft = KINDS["certificate"]().change(note=FIRST.cosign)
    for proof in (draft.later(12), draft.later(12, note=FIRST.cosign)):
        assert verify(draft.write(), key_list(), later=proof, witnesses=[FIRST.vkey]).kind == "certificate"
    with pytest.raises(Rejected, match="cannot be checked"):
        verify(draft.write(), key_list(), later=draft.later(12, note=SECOND.cosign), witnesses=[FIRST.vkey])


def test_a_later_checkpoint_cannot_confirm_what_is_not_in_the_log() -> None:
    deletion_receipt = sign(RECEIPT_TYPE, _nobody(), _receipt())
    with pytest.raises(Unconfirmed, match="overdue"):
        verify(deletion_receipt.encode(), KEY, later=later([b"x"], 1))


def _nobody() -> list[dict[str, Any]]:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    return [{"name": "d", "digest": {"sha256": empty}}]


def _receipt() -> dict[str, Any]:
    promise = {"leaf": "0" * 64, "origin": "localhost/lethe", "within_seconds": 2}
    received = "2026-11-16T08:00:00.000Z"
    return {"deletion": "d-1", "subjects": [], "received_at": received, "regulation": "gdpr", "log": promise}


ELSEWHERE = StatementSigner(bytes(range(32)), bytes(range(32, 64)), "elsewhere/lethe")


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_the_log_is_the_same_everywhere(kind: str) -> None:
    draft, renamed = KINDS[kind](), KINDS[kind]()
    renamed.statement["predicate"]["log"]["origin"] = ELSEWHERE.origin
    for content, keys in (
        (draft.change(log_signer=ELSEWHERE).write(), KEY),
        (renamed.write(), KEY),
        (renamed.change(log_signer=ELSEWHERE).write(), key_list()),
        (renamed.change(is_logged=False).write(), key_list()),
        (draft.write(), key_list(ELSEWHERE)),
    ):
        with pytest.raises(Rejected, match="of the log") as reason:
            verify(content, keys)
        assert not isinstance(reason.value, Unconfirmed)
    assert verify(renamed.change(log_signer=ELSEWHERE).write(), key_list(ELSEWHERE)).checks


def test_the_name_of_the_log_can_be_required_of_bare_keys() -> None:
    assert verify(certificate(), KEY, origin="localhost/lethe").not_proved == ()
    with pytest.raises(Rejected, match="of the log"):
        verify(certificate(), KEY, origin="elsewhere/lethe")


def test_an_entry_that_is_older_than_the_statement_is_rejected() -> None:
    for kind in ("certificate", "receipt"):
        with pytest.raises(Rejected, match="dated before the statement"):
            verify(KINDS[kind]().change(entry={"at": "2026-11-16T07:59:59.999999Z"}).write(), KEY)


@pytest.mark.parametrize(("at", "is_kept"), [("08:00:02.000000", True), ("08:00:02.000001", False)])
def test_the_entry_of_a_receipt_is_dated_within_the_promised_time(at: str, is_kept: bool) -> None:
    content = KINDS["receipt"]().change(entry={"at": f"2026-11-16T{at}Z"}).write()
    if is_kept:
        assert "within the promised time" in verify(content, KEY).checks[-2]
    else:
        with pytest.raises(Rejected, match="later than the receipt promised"):
            verify(content, KEY)


def test_a_receipt_whose_promise_was_not_kept_is_rejected() -> None:
    signed = sign(RECEIPT_TYPE, _nobody(), _receipt())
    with pytest.raises(Rejected, match="not the one that the receipt promised"):
        verify(logged(signed, entry_of(signed, "deletion.received", "d-1")), KEY)
