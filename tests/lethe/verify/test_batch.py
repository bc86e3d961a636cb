from __future__ import annotations

import json
from typing import Any

import pytest

from lethe.verify import BatchVerifier, Rejected, verify
from tests.bundles import certificate, key_list

REVOKED = {"revoked_at": "2026-11-16T08:00:05Z"}


def parts(content: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return a bundle without its place in the log, and that place."""
    bundle = json.loads(content)
    log = bundle.pop("log")
    return json.dumps(bundle, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode(), log


def check_both(content: bytes, keys: bytes) -> None:
    batch = BatchVerifier(keys)
    signed, log = parts(content)
    for _ in range(2):  # the second time with the checkpoint of the first
        batch.check_place(batch.check_statement(signed), log)


def test_both_stages_accept_what_the_verifier_accepts() -> None:
    content = certificate()
    verify(content, key_list())
    check_both(content, key_list())


@pytest.mark.parametrize(
    ("content", "keys", "reason"),
    [
        (certificate(lambda predicate: predicate["records"].update(after=1)), key_list(), "do not add up|sizes"),
        (certificate(), key_list(origin="elsewhere/lethe"), "of the log|another log"),
        (certificate(lambda predicate: predicate.update(issued_at="2026-11-16T07:00:00Z")), key_list(), "before its"),
        (certificate(), key_list(statements=REVOKED.items()), "revoked"),
        (certificate(), key_list(log=REVOKED.items()), "revoked"),
    ],
    ids=["content", "log's name", "dates", "statement key", "log key"],
)
def test_both_stages_reject_what_the_verifier_rejects(content: bytes, keys: bytes, reason: str) -> None:
    for check in (verify, check_both):
        with pytest.raises(Rejected, match=reason):
            check(content, keys)


def test_a_place_of_another_statement_is_rejected() -> None:
    batch = BatchVerifier(key_list())
    signed, _ = parts(certificate())
    _, other = parts(certificate(lambda predicate: predicate.update(seconds=7.5)))
    with pytest.raises(Rejected, match="of another statement"):
        batch.check_place(batch.check_statement(signed), other)
