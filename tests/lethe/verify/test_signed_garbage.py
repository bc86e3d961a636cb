"""Whatever is signed, listed or proved, the verifier answers with an outcome, in bounded time, and never otherwise."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lethe.verify import Rejected, verify
from tests.bundle_schema import accepting_other_content
from tests.bundles import SIGNER, key_list
from tests.corpus.drafts import KINDS, Draft, certificate
from tests.corpus.values import WRONG, paths_of, with_value, without

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([value for value in WRONG if not isinstance(value, list | dict)]),
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def outcome(draft: Draft, keys: bytes = b"", later: bytes | None = None) -> str:
    """Return the outcome. Any other exception fails the test."""
    content = draft.write()
    try:
        with accepting_other_content():
            return verify(content, keys or key_list(), later=later).kind
    except Rejected as reason:
        return str(reason)


@MANY
@given(kind=st.sampled_from(sorted(KINDS)), garbage=GARBAGE, data=st.data())
def test_garbage_in_any_member_of_a_signed_statement(kind: str, garbage: Any, data: st.DataObject) -> None:
    draft = KINDS[kind]()
    path = data.draw(st.sampled_from(list(paths_of(draft.statement))))
    assert outcome(draft.change(statement=with_value(draft.statement, path, garbage)))
    assert outcome(draft.change(statement=without(draft.statement, path)))


@MANY
@given(garbage=st.binary(max_size=64) | GARBAGE.map(lambda value: json.dumps(value).encode()))
def test_garbage_as_a_signed_payload_as_keys_and_as_a_later_proof(garbage: bytes) -> None:
    draft = certificate()
    assert outcome(draft.change(payload=lambda _: garbage))
    for content in (garbage, b'{"keys":' + garbage + b"}", b"{" + garbage):
        assert outcome(draft, keys=content)
        assert outcome(draft, later=content)


@MANY
@given(garbage=GARBAGE, data=st.data())
def test_garbage_in_any_member_of_keys_entry_and_later_proof(garbage: Any, data: st.DataObject) -> None:
    draft, keys = certificate(), json.loads(key_list(witnesses=["w"]))
    path = data.draw(st.sampled_from(list(paths_of(keys))))
    assert outcome(draft, keys=json.dumps(with_value(keys, path, garbage)).encode())
    later = json.loads(draft.later(12))
    path = data.draw(st.sampled_from(list(paths_of(later))))
    assert outcome(draft, later=json.dumps(with_value(later, path, garbage)).encode())
    member = data.draw(st.sampled_from(["action", "at", "concerns", "details"]))
    assert outcome(draft.change(entry={member: garbage}))


@MANY
@given(note=st.text(max_size=40), at=st.integers(0, 200), cut=st.integers(0, 20))
def test_garbage_in_a_checkpoint(note: str, at: int, cut: int) -> None:
    draft = certificate().change(note=lambda whole: whole[:at] + note + whole[at + cut :])
    try:
        outcome(draft)
    except UnicodeEncodeError:
        assert any("\ud800" <= character <= "\udfff" for character in note)  # cannot be written into a file


@pytest.mark.parametrize("size", [1 << 40, (1 << 53) - 1])
def test_a_huge_tree_with_a_short_proof_is_rejected_at_once(size: int) -> None:
    content = copy.deepcopy(certificate().statement)
    predicate = content["predicate"]
    predicate["records"].update(before=size, after=size - 4)
    predicate["dataset"]["before"]["records"] = size
    predicate["dataset"]["after"]["records"] = size - 4
    assert "too short" in outcome(certificate().change(statement=content))


def test_an_enormous_proof_is_rejected_at_once() -> None:
    def lengthen(bundle: dict[str, Any]) -> dict[str, Any]:
        bundle["log"]["proof"] *= 50_000
        return bundle

    assert "too long" in outcome(certificate().change(bundle=lengthen))
    later = json.loads(certificate().later(12))
    later["proof"] *= 1_000
    assert "does not lead" in outcome(certificate(), later=json.dumps(later).encode())
    assert SIGNER.origin in outcome(certificate(), keys=key_list(origin="elsewhere"))
