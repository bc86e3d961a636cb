"""Evidence that may be missing: a place in the log, and confirmation of what a revoked key signed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lethe.verify import Rejected, Unconfirmed, verify
from service.store.signing.statements import StatementSigner
from tests.bundles import key_list
from tests.corpus.drafts import absence, certificate, receipt
from tests.lethe.verify.test_checkpoints import FIRST

RECEIVED = datetime(2026, 11, 16, 8, tzinfo=UTC)
REVOKED = datetime(2026, 11, 17, tzinfo=UTC)
SUCCESSOR = StatementSigner(bytes([7]) * 32, bytes([8]) * 32)


def keys(statements: bool = False, log: bool = False, successor_log: bool = False) -> bytes:
    """Return a list of the keys and their successors, in which the given ones were revoked."""
    revoked = {"revoked_at": REVOKED.isoformat()}
    first = json.loads(key_list(statements=revoked if statements else {}, log=revoked if log else {}))
    second = json.loads(key_list(SUCCESSOR, log=revoked if successor_log else {}))
    return json.dumps({**first, "keys": first["keys"] + second["keys"], "witnesses": [FIRST.vkey]}).encode()


def missing(content: bytes, key_list: bytes, **options: Any) -> str:
    with pytest.raises(Unconfirmed) as reason:
        verify(content, key_list, **options)
    assert len(reason.value.so_far.checks) > 3
    return str(reason.value)


@pytest.mark.parametrize("seconds", [0, 2])
def test_a_receipt_within_its_promise_is_to_be_downloaded_again(seconds: int) -> None:
    content, now = receipt().change(is_logged=False).write(), RECEIVED + timedelta(seconds=seconds)
    assert missing(content, keys(), now=now).endswith("within 2 seconds of receipt; download it again then")


def test_a_receipt_past_its_promise_is_evidence() -> None:
    content, now = receipt().change(is_logged=False).write(), RECEIVED + timedelta(seconds=2, microseconds=1)
    assert "overdue" in missing(content, keys(), now=now)
    assert "keep this file as evidence" in missing(content, keys())


def test_an_absence_without_its_place_is_not_verified() -> None:
    assert "download it again" in missing(absence().change(is_logged=False).write(), keys())


def test_both_reasons_are_told() -> None:
    reason = missing(absence().change(is_logged=False).write(), keys(statements=True))
    assert "place in the log" in reason
    assert "revoked later" in reason


@pytest.mark.parametrize("revoked", ["statements", "log"])
def test_a_later_checkpoint_under_another_key_confirms_the_date(revoked: str) -> None:
    draft = certificate()
    assert "revoked later" in missing(draft.write(), keys(**{revoked: True}))
    assert verify(draft.write(), keys(**{revoked: True}), later=draft.later(12, SUCCESSOR)).kind == "certificate"


def test_a_later_checkpoint_under_a_revoked_key_confirms_nothing() -> None:
    draft = certificate()
    assert "revoked later" in missing(draft.write(), keys(log=True), later=draft.later(12))
    revoked = keys(statements=True, successor_log=True)
    assert "revoked later" in missing(draft.write(), revoked, later=draft.later(12, SUCCESSOR))


@pytest.mark.parametrize("revoked", ["statements", "log"])
@pytest.mark.parametrize(("seconds", "is_confirmed"), [(-1, True), (0, False), (1, False)])
def test_a_witness_confirms_the_date_if_it_signed_before_the_revocation(
    revoked: str, seconds: int, is_confirmed: bool
) -> None:
    time = int(REVOKED.timestamp()) + seconds
    content = certificate().change(note=lambda note: FIRST.cosign(note, time)).write()
    if is_confirmed:
        assert verify(content, keys(**{revoked: True})).kind == "certificate"
    else:
        assert "revoked later" in missing(content, keys(**{revoked: True}))


def test_a_cosigned_later_checkpoint_confirms_the_date_even_under_the_revoked_key() -> None:
    draft, time = certificate(), int(REVOKED.timestamp()) - 1
    later = draft.later(12, note=lambda note: FIRST.cosign(note, time))
    assert verify(draft.write(), keys(log=True), later=later).kind == "certificate"


def test_what_is_wrong_is_rejected_whatever_is_missing() -> None:
    broken = certificate(issued_at="2026-11-15T08:00:00.000Z").write()
    with pytest.raises(Rejected, match="before its request") as reason:
        verify(broken, keys(statements=True))
    assert not isinstance(reason.value, Unconfirmed)
