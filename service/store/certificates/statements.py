"""Receipts and certificates: what is stated, in which words, and its signature."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import rfc8785

from service.store.certificates.software import software
from service.store.datasets.tree import DatasetTree, forgotten_proof
from service.store.deletions.lifecycle import DeletionView
from service.store.log.leaves import leaf
from service.store.log.merkle import leaf_hash
from service.store.signing.statements import (
    ABSENCE_TYPE,
    CERTIFICATE_TYPE,
    RECEIPT_TYPE,
    StatementSigner,
    bundle,
    payload_digest,
    without_fractions,
)
from service.store.tables import Deletion, Model, Version, now

PROMISE_SECONDS = 2
"""Within which an entry is in a signed checkpoint of the log."""
DATASET_NOT_PROVED = (
    "That the data-set roots were computed from the rows on which the model stands, with commitments in order, rests "
    "on the software that signed this; whoever may see the retained rows can recompute the second root."
)
ABSENCE_NOT_PROVED = (
    "Subjects are found by the identities that models were registered with; records kept under another identity, or "
    "outside Lethe, are not covered."
)


@dataclass(frozen=True)
class Evidence:
    """What a worker computed, as plain JSON values. The store signs it and adds nothing of its own to the bound."""

    epsilon: float
    level: str
    bound: Mapping[str, Any]
    rungs: Sequence[Mapping[str, Any]]
    effects: Mapping[str, Any]
    seconds: float


def sign_receipt(signer: StatementSigner, view: DeletionView) -> str:
    """Our signed word that the request is durable, and that the log will say so, as a bundle."""
    promised = leaf_hash(leaf(**received_entry(view))).hex()
    promise = {"origin": signer.origin, "leaf": promised, "within_seconds": PROMISE_SECONDS}
    predicate = {**_received(view), "log": promise}
    return bundle(signer.sign(RECEIPT_TYPE, [_request(view)], predicate, fractions=False))


def received_entry(view: DeletionView) -> dict[str, Any]:
    """The audit entry of a new deletion. The receipt names it by its hash, so its bytes must not change."""
    details: dict[str, Any] = {"subjects": sorted(view.commitments)}
    if view.records:
        details["records"] = sorted(
            (one.named() for one in view.records), key=lambda one: (one["model"], one["record"])
        )
    concerns, at = str(view.deletion.id), view.deletion.received_at
    return {
        "actor": view.deletion.caller,
        "action": "deletion.received",
        "concerns": concerns,
        "details": details,
        "at": at,
    }


@dataclass(frozen=True)
class Forgetting:
    """What one batch did to one model: all its certificates say the same of it."""

    model: Model
    policy: Mapping[str, Any]
    before: Version
    after: Version
    tree_before: DatasetTree
    tree_after: DatasetTree
    evidence: Evidence

    @functools.cached_property
    def subjects(self) -> Sequence[Mapping[str, Any]]:
        return [_artifact(self.model, self.before), _artifact(self.model, self.after)]

    @functools.cached_property
    def members(self) -> Mapping[str, bytes]:
        """Canonical JSON. Most of a certificate, and nearly all of the time it takes to write one."""
        model, before, after, evidence = self.model, self.before, self.after, self.evidence
        facts: dict[str, Any] = {
            "model": {
                "id": str(model.id),
                "name": model.name,
                "family": model.family,
                "posterior": model.posterior_kind,
                "config": model.config,
            },
            "records": {
                "before": before.record_count,
                "after": after.record_count,
                "forgotten_in_batch": before.record_count - after.record_count,
            },
            "dataset": {"before": _dataset(before, self.tree_before), "after": _dataset(after, self.tree_after)},
            "policy": dict(self.policy),
            "bound": dict(evidence.bound),
            "rungs": [dict(rung) for rung in evidence.rungs],
            "effects": dict(evidence.effects),
            "seconds": evidence.seconds,
            "not_proved": [DATASET_NOT_PROVED],
            "software": dict(software()),
        }
        return {name: rfc8785.dumps(fact) for name, fact in facts.items()}


@dataclass(frozen=True)
class Issued:
    id: uuid.UUID
    bundle: str
    statement: str
    """The digest by which the log names it."""


def issue(
    signer: StatementSigner,
    forgetting: Forgetting,
    deletion: Deletion,
    commitments: Iterable[str],
    named_records: Iterable[int],
    forgotten: Collection[int],
    issued_at: datetime,
) -> Issued:
    """Sign the certificate of one deletion in one model, of which all its records were `forgotten`."""
    certificate_id = uuid.uuid4()
    own: dict[str, Any] = {
        "certificate": str(certificate_id),
        "deletion": str(deletion.id),
        "regulation": deletion.regulation,
        "subjects": sorted(commitments),
        "named_records": sorted(named_records),
        "forgotten": forgotten_proof(forgetting.tree_before, forgetting.tree_after, forgotten),
        "received_at": _timestamp(deletion.received_at),
        "due_at": _timestamp(deletion.due_at),
        "issued_at": _timestamp(issued_at),
    }
    members = {**forgetting.members, **{name: without_fractions(fact) for name, fact in own.items()}}
    envelope = signer.sign_written(CERTIFICATE_TYPE, forgetting.subjects, members)
    return Issued(certificate_id, bundle(envelope), payload_digest(envelope))


def sign_absence(signer: StatementSigner, view: DeletionView, models_in_store: int) -> tuple[datetime, str]:
    """Sign that at receipt no model held what the deletion names. Returns when, and the bundle."""
    issued_at = now()
    predicate = {
        **_received(view),
        "issued_at": _timestamp(issued_at),
        "models_in_store": models_in_store,
        "statement": view.deletion.outcome,
        "not_proved": [ABSENCE_NOT_PROVED],
        "software": dict(software()),
    }
    return issued_at, bundle(signer.sign(ABSENCE_TYPE, [_request(view)], predicate, fractions=False))


def _received(view: DeletionView) -> dict[str, Any]:
    """What was asked for, and when."""
    asked: dict[str, Any] = {
        "deletion": str(view.deletion.id),
        "regulation": view.deletion.regulation,
        "subjects": sorted(view.commitments),
        "received_at": _timestamp(view.deletion.received_at),
    }
    return {**asked, "records": [record.named() for record in view.records]} if view.records else asked


def _request(view: DeletionView) -> dict[str, Any]:
    digest = _digest("\n".join(sorted(view.commitments)))
    return {"name": f"deletion/{view.deletion.id}", "digest": {"sha256": digest}}


def _artifact(model: Model, version: Version) -> dict[str, Any]:
    return {"name": f"model/{model.id}/version/{version.number}", "digest": {"sha256": version.posterior_digest}}


def _dataset(version: Version, tree: DatasetTree) -> dict[str, Any]:
    return {"digest": version.dataset_digest, "root": tree.root, "records": tree.records}


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
