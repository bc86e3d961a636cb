"""Receipts and certificates: what is stated, in which words, and its signature."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

import rfc8785
from sqlalchemy.orm import Session

from service.store.deletions import DeletionView
from service.store.errors import NotFound
from service.store.signing import ABSENCE_TYPE, CERTIFICATE_TYPE, RECEIPT_TYPE, StatementSigner, bundle
from service.store.tables import Absence, Certificate, Deletion, Model, Version, now

SOFTWARE = {"name": "lethe", "version": version("lethe")}
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
    """Our signed word that the request is durable, as a bundle."""
    return bundle(signer.sign(RECEIPT_TYPE, [_request(view)], _received(view), fractions=False))


@dataclass(frozen=True)
class Forgetting:
    """What one batch did to one model: all its certificates say the same of it."""

    model: Model
    policy: Mapping[str, Any]
    before: Version
    after: Version
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
            "dataset": {"before": before.dataset_digest, "after": after.dataset_digest},
            "policy": dict(self.policy),
            "bound": dict(evidence.bound),
            "rungs": [dict(rung) for rung in evidence.rungs],
            "effects": dict(evidence.effects),
            "seconds": evidence.seconds,
            "software": SOFTWARE,
        }
        return {name: rfc8785.dumps(fact) for name, fact in facts.items()}


def issue(
    signer: StatementSigner,
    forgetting: Forgetting,
    deletion: Deletion,
    commitments: Iterable[str],
    named_records: Iterable[int],
    issued_at: datetime,
) -> tuple[uuid.UUID, str]:
    """Sign the certificate of one deletion in one model. Returns its id and its bundle."""
    certificate_id = uuid.uuid4()
    own: dict[str, Any] = {
        "certificate": str(certificate_id),
        "deletion": str(deletion.id),
        "regulation": deletion.regulation,
        "subjects": sorted(commitments),
        "named_records": sorted(named_records),
        "received_at": _timestamp(deletion.received_at),
        "issued_at": _timestamp(issued_at),
    }
    members = {**forgetting.members, **{name: rfc8785.dumps(fact) for name, fact in own.items()}}
    return certificate_id, bundle(signer.sign_written(CERTIFICATE_TYPE, forgetting.subjects, members))


def sign_absence(signer: StatementSigner, view: DeletionView, models_in_store: int) -> tuple[datetime, str]:
    """Sign that at receipt no model held what the deletion names. Returns when, and the bundle."""
    issued_at = now()
    predicate = {
        **_received(view),
        "issued_at": _timestamp(issued_at),
        "models_in_store": models_in_store,
        "statement": view.deletion.outcome,
        "not_proved": [ABSENCE_NOT_PROVED],
        "software": SOFTWARE,
    }
    return issued_at, bundle(signer.sign(ABSENCE_TYPE, [_request(view)], predicate, fractions=False))


def find_absence(session: Session, deletion_id: uuid.UUID, caller: str | None) -> str:
    """The certificate of absence as it was signed; with `caller` given, only if the deletion is theirs."""
    absence, deletion = session.get(Absence, deletion_id), session.get(Deletion, deletion_id)
    if absence is None or deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"there is no certificate of absence for deletion {deletion_id}")
    return absence.bundle


def find_bundle(session: Session, certificate_id: uuid.UUID, caller: str | None) -> str:
    """A certificate as it was signed; with `caller` given, only if the deletion is theirs."""
    certificate = session.get(Certificate, certificate_id)
    if certificate is not None:
        deletion = session.get_one(Deletion, certificate.deletion_id)
        if caller is None or deletion.caller == caller:
            return certificate.bundle
    raise NotFound(f"there is no certificate {certificate_id}")


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


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
