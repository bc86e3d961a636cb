from __future__ import annotations

import base64
import json
import os
import uuid

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from service.store.certificates.statements import sign_absence, sign_receipt
from service.store.deletions.lifecycle import DeletionView, NamedRecord
from service.store.signing.statements import StatementSigner, without_fractions
from service.store.tables import Deletion, now

KEYS = st.text(st.characters(max_codepoint=127), max_size=8)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_without_fractions_the_short_way_writes_the_same_bytes(value: dict[str, object]) -> None:
    assert without_fractions(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


def test_receipts_and_absences_are_canonical() -> None:
    deletion = Deletion(id=uuid.uuid4(), regulation="gdpr", received_at=now(), outcome='Nobody: \u2013 "x".')
    view = DeletionView(deletion, ["b" * 64, "a" * 64], [], [NamedRecord(uuid.uuid4(), 17)])
    signer = StatementSigner(os.urandom(32))
    for bundle in (sign_receipt(signer, view), sign_absence(signer, view, 3)[1]):
        parsed = json.loads(bundle)
        assert rfc8785.dumps(parsed).decode() == bundle
        payload = base64.b64decode(parsed["envelope"]["payload"])
        assert rfc8785.dumps(json.loads(payload)) == payload


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), ANYTHING | st.floats(-1e300, 1e300), max_size=4))
def test_members_written_ahead_are_signed_as_the_same_bytes(predicate: dict[str, object]) -> None:
    signer, subjects = StatementSigner(bytes(range(32))), [{"name": "m", "digest": {"sha256": "0" * 64}}]
    written = {name: rfc8785.dumps(value) for name, value in predicate.items()}  # type: ignore[arg-type]
    assert signer.sign_written("urn:x", subjects, written) == signer.sign("urn:x", subjects, predicate)
