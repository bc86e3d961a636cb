from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from lethe.verify import Unconfirmed, verify
from service.store.certificates.statements import Forgetting, issue, received_entry, sign_absence, sign_receipt
from service.store.datasets.dataset import Dataset
from service.store.datasets.tree import DatasetTree
from service.store.deletions.views import DeletionView, NamedRecord
from service.store.log.leaves import encode_leaf
from service.store.log.merkle import leaf_hash
from service.store.signing.statements import StatementSigner
from service.store.tables import Deletion, Model, Version
from tests.bundle_schema import check_bundle
from tests.bundles import SIGNER
from tests.evidence import make_evidence
from vocabulary.certificate import DestroyedFile, ErasureFacts, ScheduledFile

RECEIVED_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DELETION = Deletion(
    id=uuid.UUID(int=9),
    caller="acme",
    regulation="gdpr",
    received_at=RECEIVED_AT,
    due_at=RECEIVED_AT + timedelta(days=30),
    outcome='Nobody: – "x".',
)
RECORDS = [NamedRecord(uuid.UUID(int=3), 17), NamedRecord(uuid.UUID(int=3), 2)]
RECEIPT_DIGESTS = [
    "8ce0b48a5e9ecd2a8ec4e6e7f469fc53dcfcd92feb5b358152145482fca1fb68",
    "c34930ed7212c291eaa0ed0c6747358606d8a47cdf4c9e67609ef91b736085dc",
]
"""SHA-256 of the bundles that the code before the typed models (eeb8e5a) made of the same requests."""
POLICY = {"epsilon": 1e-6, "level": "proved", "rungs": ["influence", "newton"], "seconds": None}


def view(*records: NamedRecord) -> DeletionView:
    return DeletionView(DELETION, ["b" * 64, "a" * 64], [], list(records))


def predicate_of(bundle: str) -> dict[str, Any]:
    payload = base64.b64decode(json.loads(bundle)["envelope"]["payload"])
    predicate: dict[str, Any] = json.loads(payload)["predicate"]
    return predicate


def forgetting() -> Forgetting:
    rows = np.arange(40.0).reshape(20, 2)
    salts = np.tile(np.arange(16, dtype=np.uint8), (20, 1))
    dataset = Dataset({"x": rows}, np.arange(20, dtype=np.int64), salts)
    evidence = make_evidence()
    assert evidence.bound is not None
    assert evidence.effects is not None
    config = {"components": 2, "dimensions": 2, "prior_std": 1.0}
    return Forgetting(
        model=Model(
            id=uuid.UUID(int=5), name="m", family="gaussian-mixture", posterior_kind="variational", config=config
        ),
        policy=POLICY,
        before=Version(number=1, posterior_digest="0" * 64, dataset_digest="1" * 64, record_count=20),
        after=Version(number=2, posterior_digest="2" * 64, dataset_digest="3" * 64, record_count=18),
        tree_before=DatasetTree.from_dataset(dataset),
        tree_after=DatasetTree.from_dataset(dataset.without([3, 4])),
        bound=evidence.bound,
        effects=evidence.effects,
        rungs=evidence.rungs,
        seconds=evidence.seconds,
        erasure=ErasureFacts(
            destroyed=[DestroyedFile(digest="0" * 64, kind="posterior")],
            scheduled=[ScheduledFile(at=RECEIVED_AT, digest="1" * 64, kind="dataset")],
        ),
    )


def test_receipts_and_absences_fit_the_schema() -> None:
    for records in ([], RECORDS):
        check_bundle(sign_receipt(SIGNER, view(*records)))
        check_bundle(sign_absence(SIGNER, view(*records), 3, RECEIVED_AT))


def test_the_bytes_of_a_receipt_are_those_of_earlier_versions() -> None:
    signer = StatementSigner(bytes(range(32)), bytes(range(32, 64)), "log.example/x")
    digests = [hashlib.sha256(sign_receipt(signer, view(*records)).encode()).hexdigest() for records in ([], RECORDS)]
    assert digests == RECEIPT_DIGESTS


def test_a_receipt_promises_the_leaf_of_its_entry() -> None:
    receipt = predicate_of(sign_receipt(SIGNER, view(*RECORDS)))
    assert receipt["log"]["leaf"] == leaf_hash(encode_leaf(**received_entry(view(*RECORDS)))).hex()
    assert receipt["received_at"] == "2026-01-02T03:04:05.678Z"
    assert receipt["subjects"] == ["a" * 64, "b" * 64]
    assert [record["record"] for record in receipt["records"]] == [17, 2]
    assert "records" not in predicate_of(sign_receipt(SIGNER, view()))


def test_an_absence_states_the_outcome_and_what_was_searched() -> None:
    issued_at = RECEIVED_AT + timedelta(seconds=1)
    bundle = sign_absence(SIGNER, view(), 3, issued_at)
    predicate = predicate_of(bundle)
    assert (predicate["statement"], predicate["models_in_store"]) == (DELETION.outcome, 3)
    assert predicate["issued_at"] == issued_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert predicate["log"] == {"origin": SIGNER.origin}
    with pytest.raises(Unconfirmed, match="place in the log") as missing:
        verify(bundle.encode(), SIGNER.public_pem.encode())
    assert missing.value.so_far.kind == "certificate of absence"


def test_a_certificate_repeats_no_settings_that_its_family_has_retired() -> None:
    config = {"dimensions": 2, "prior_std": 1.0}
    batch = forgetting()
    batch.model.family, batch.model.config = "logistic-regression", {**config, "draws": 16, "seed": 0}
    assert json.loads(batch.members["model"])["config"] == config


def test_a_certificate_has_its_own_members_and_those_of_its_batch() -> None:
    batch = forgetting()
    issued_at = RECEIVED_AT + timedelta(hours=1)
    first = issue(SIGNER, batch, DELETION, ["b" * 64, "a" * 64], [4], [3, 4], issued_at)
    second = issue(SIGNER, batch, DELETION, ["c" * 64], [], [3], issued_at)
    for certificate in (first, second):
        check_bundle(certificate.bundle)
        payload = base64.b64decode(json.loads(certificate.bundle)["envelope"]["payload"])
        assert certificate.statement == hashlib.sha256(payload).hexdigest()
    predicates = [predicate_of(certificate.bundle) for certificate in (first, second)]
    assert [predicate["certificate"] for predicate in predicates] == [str(first.id), str(second.id)]
    assert [len(predicate["forgotten"]["commitments"]) for predicate in predicates] == [2, 1]
    assert predicates[0]["subjects"] == ["a" * 64, "b" * 64]
    shared = batch.members.keys()
    assert {name: predicates[0][name] for name in shared} == {name: predicates[1][name] for name in shared}
    assert predicates[0]["policy"] == POLICY
    assert predicates[0]["records"] == {"before": 20, "after": 18, "forgotten_in_batch": 2}
