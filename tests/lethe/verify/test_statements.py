from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lethe.verify import Rejected, Unconfirmed, verify
from service.store.certificates.statements import sign_receipt
from service.store.deletions.views import DeletionView
from service.store.tables import Deletion
from tests.bundles import SIGNER, certificate, key_list
from tests.corpus.drafts import KINDS

KEY = SIGNER.public_pem.encode()


def estimated(interval: Any) -> Callable[[dict[str, Any]], object]:
    def change(content: dict[str, Any]) -> None:
        content["policy"]["level"] = "estimated"
        content["bound"].update(level="estimated", interval=interval)

    return change


def test_an_estimate_is_told_with_its_interval() -> None:
    checks = verify(certificate(estimated([1e-10, 1e-9])), KEY).checks
    expected = "estimated at 1.000e-10 to 1.000e-09 nats (policy 1.0e-06), level estimated"
    assert any(expected in check for check in checks)


@pytest.mark.parametrize("interval", [None, [], [1e-9], [2e-9, 1e-9], [0.0, 2e-9], [None, 1e-9], [-1e-9, 1e-9]])
def test_an_estimate_that_is_not_the_upper_end_of_its_interval_is_rejected(interval: Any) -> None:
    with pytest.raises(Rejected, match="interval"):
        verify(certificate(estimated(interval)), KEY)


def referring(kind: str | None, **policy: str) -> Callable[[dict[str, Any]], object]:
    def change(content: dict[str, Any]) -> None:
        estimated([0.0, 1e-9])(content)
        content["bound"]["reference_kind"] = kind
        content["policy"].update(policy)

    return change


def test_the_reference_of_a_sample_set_is_told() -> None:
    stored = verify(certificate(referring("stored draws", reference="stored draws")), KEY).checks
    assert any(check.startswith("reference: the stored draws (weaker promise)") for check in stored)
    posterior = verify(certificate(referring("posterior")), KEY).checks
    assert "reference: the posterior given the retained records" in posterior
    for change in (referring(None), estimated([0.0, 1e-9])):
        assert not any("reference" in check for check in verify(certificate(change), KEY).checks)


@pytest.mark.parametrize(
    ("kind", "policy", "reason"),
    [
        ("stored draws", {}, "weaker than the posterior that the policy requires"),
        ("stored draws", {"reference": "posterior"}, "weaker than the posterior that the policy requires"),
        ("prior", {}, "unknown"),
        ("posterior", {"reference": "prior"}, "unknown"),
    ],
)
def test_a_reference_below_the_policy_is_rejected(kind: str, policy: dict[str, str], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(certificate(referring(kind, **policy)), KEY)


def test_a_receipt_is_not_verified_before_it_is_in_the_log() -> None:
    deletion = Deletion(id="d-1", caller="acme", regulation="gdpr", received_at=datetime(2026, 11, 16, tzinfo=UTC))
    content = sign_receipt(SIGNER, DeletionView(deletion, ["b" * 64, "a" * 64], [])).encode()
    with pytest.raises(Unconfirmed, match="overdue") as missing:
        verify(content, KEY)
    assert missing.value.so_far.kind == "receipt"
    in_time = datetime(2026, 11, 16, 0, 0, 2, tzinfo=UTC)
    with pytest.raises(Unconfirmed, match="within 2 seconds of receipt; download it again then"):
        verify(content, KEY, now=in_time)


def test_what_is_not_proved_is_told() -> None:
    content = certificate(lambda content: content.update(not_proved=["that pigs fly"]))
    assert verify(content, key_list()).not_proved == ("that pigs fly",)
    assert verify(content, key_list()).facts()["not_proved"] == ("that pigs fly",)
    assert "name of the log" in verify(content, KEY).not_proved[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p["bound"].update(epsilon=1e-5), "not within the policy"),
        (lambda p: p["bound"].update(epsilon=-1e-9), "not within the policy"),
        (lambda p: p["bound"].update(epsilon=None), "epsilon is not a number"),
        (lambda p: p["bound"].update(level="none"), "does not support a bound"),
        (lambda p: p["bound"].update(assumptions=[]), "does not support a bound"),
        (lambda p: p["bound"].update(level="estimated"), "weaker than 'proved'"),
        (lambda p: p["bound"].update(level="retrained"), "not 0"),
        (lambda p: p["policy"].update(level="some"), "does not support a bound"),
        (lambda p: p["policy"].pop("level"), "level is missing"),
        (lambda p: p["bound"]["assumptions"][0].update(holds=False), "assumptions does not hold"),
        (lambda p: p["records"].update(after=40), "do not add up"),
        (lambda p: p["records"].update(forgotten_in_batch=3), "do not add up"),
        (lambda p: p.update(issued_at="2026-11-15T08:00:00.000Z"), "before its request"),
        (lambda p: p.update(received_at="yesterday"), "not a time"),
        (lambda p: p.pop("bound"), "bound is missing"),
        (lambda p: p.pop("deletion"), "deletion is missing"),
    ],
)
def test_a_signed_certificate_that_contradicts_itself_is_rejected(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(certificate(change), KEY)


def test_a_replacement_names_what_it_replaces() -> None:
    checks = verify(KINDS["replacement"]().write(), KEY).checks
    assert "it replaces c-0 (statement 777777777777): The key was revoked." in checks
    for name in ("certificate", "statement", "reason"):
        draft = KINDS["replacement"]()
        del draft.statement["predicate"]["replaces"][name]
        with pytest.raises(Rejected, match=name):
            verify(draft.write(), KEY)


def changed_destruction(change: Callable[[dict[str, Any]], object]) -> bytes:
    draft = KINDS["destruction"]()
    change(draft.statement)
    return draft.write()


def test_a_destruction_names_the_last_version_and_its_files() -> None:
    verified = verify(KINDS["destruction"]().write(), key_list())
    assert verified.kind == "certificate of destruction"
    assert "records 40 -> 0: none is left" in verified.checks
    assert "4 records of this deletion were in its data set" in verified.checks


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["subject"].append(s["subject"][0]), "must name the last version"),
        (lambda s: s["predicate"]["records"].update(after=1, forgotten_in_batch=39), "do not add up"),
        (lambda s: s["predicate"]["records"].update(forgotten_in_batch=39), "do not add up"),
        (lambda s: s["predicate"]["records"].update(before=41, forgotten_in_batch=41), "sizes of the data sets differ"),
        (lambda s: s["predicate"]["erasure"]["scheduled"].pop(), "file"),
        (lambda s: s["predicate"].pop("erasure"), "erasure is missing"),
        (lambda s: s["predicate"]["forgotten"]["commitments"].pop(), "as many"),
        (lambda s: s["predicate"]["forgotten"]["before"]["proof"].pop(), "too short|does not lead"),
        (lambda s: s["predicate"].update(issued_at="2026-11-15T08:00:00.000Z"), "before its request"),
        (lambda s: s["predicate"].pop("dataset"), "dataset is missing"),
    ],
)
def test_a_destruction_that_contradicts_itself_is_rejected(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        verify(changed_destruction(change), key_list())
