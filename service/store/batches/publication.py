"""Publishing: the one transaction that makes a forgotten version current, erases, completes and certifies."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.access.identities import forget_subjects
from service.store.artifacts.store import adopt, schedule_destruction
from service.store.batches.lifecycle import Claim, end, records_of
from service.store.certificates.issuance import complete_and_certify
from service.store.certificates.statements import Evidence, Forgetting
from service.store.datasets.tree import DatasetTree
from service.store.deletions import lifecycle as deletions
from service.store.errors import PolicyMissed
from service.store.log.sequencing import sequence
from service.store.models.registry import current_version
from service.store.signing.statements import StatementSigner
from service.store.states import BatchStatus
from service.store.tables import (
    DeletionSubject,
    DeletionTarget,
    Model,
    Record,
    Version,
    now,
)
from vocabulary.levels import is_at_least


@dataclass(frozen=True)
class Processed:
    """What a worker brings back. Both files are stored already."""

    posterior_digest: str
    dataset_digest: str
    tree_before: DatasetTree
    tree_after: DatasetTree
    device: str
    evidence: Evidence


def publish(
    session: Session, claim: Claim, processed: Processed, signer: StatementSigner, retention_seconds: float
) -> Sequence[uuid.UUID]:
    """Make the new version current, erase, complete and certify: all of it or none. Returns the certificates."""
    batch = end(session, claim.batch_id, BatchStatus.PUBLISHED)
    batch.phase, batch.percent = "published", 100.0
    batch.device, batch.rungs = processed.device, [dict(rung) for rung in processed.evidence.rungs]
    model = session.get_one(Model, claim.model_id)
    _check_policy(claim.policy, processed.evidence)
    before = current_version(session, claim.model_id)
    after = _add_version(session, before, processed, retention_seconds)
    audit.record(
        session,
        batch.worker,
        "version.published",
        model.id,
        batch=str(batch.id),
        posterior=after.posterior_digest,
        dataset=after.dataset_digest,
        epsilon=processed.evidence.epsilon,
        level=processed.evidence.level,
    )
    audit.record_rungs(session, batch.worker, batch.id, processed.evidence.rungs)
    evidence = _name_worst(session, claim, processed.evidence)
    trees = processed.tree_before, processed.tree_after
    forgetting = Forgetting(model, claim.policy, before, after, *trees, evidence)
    certified = complete_and_certify(session, batch.id, forgetting, signer)
    _erase(session, claim, batch.worker)
    deletions.refresh(session, certified)
    sequence(session, signer)
    return list(certified.values())


def _check_policy(policy: Mapping[str, Any], evidence: Evidence) -> None:
    """The worker has climbed until the policy was met, or could not; whatever it says, a miss is not published."""
    epsilon, level = policy["epsilon"], policy["level"]
    if not (evidence.epsilon <= epsilon and is_at_least(evidence.level, level)):
        tried = ", ".join(f"{rung['name']} ({rung['seconds']:.2g} s)" for rung in evidence.rungs)
        raise PolicyMissed(
            f"the bound reached is {evidence.epsilon:.3g} at level {evidence.level}, the model's policy asks for "
            f"{epsilon:.3g} at level {level}; nothing was published. Tried: {tried}. Allow more rungs or time in the "
            "policy, or retrain the model without the records and register it."
        )


def _name_worst(session: Session, claim: Claim, evidence: Evidence) -> Evidence:
    """On a certificate a row is known by the commitment of its person only; by none where the row itself was named."""
    membership = evidence.effects["membership"]
    if membership["worst"] is None:
        return evidence
    worst = dict(membership["worst"])
    commitment = session.scalars(
        select(DeletionSubject.commitment)
        .join(Record, Record.subject_id == DeletionSubject.subject_id)
        .join(DeletionTarget, DeletionTarget.deletion_id == DeletionSubject.deletion_id)
        .where(DeletionTarget.batch_id == claim.batch_id)
        .where(Record.model_id == claim.model_id, Record.record == worst.pop("record"))
        .order_by(DeletionSubject.commitment)
    ).first()
    named = {**membership, "worst": {**worst, "commitment": commitment}}
    return replace(evidence, effects={**evidence.effects, "membership": named})


def _add_version(session: Session, before: Version, processed: Processed, retention_seconds: float) -> Version:
    before.superseded_at = now()
    session.flush()
    after = Version(
        id=uuid.uuid4(),
        model_id=before.model_id,
        number=before.number + 1,
        posterior_digest=processed.posterior_digest,
        dataset_digest=processed.dataset_digest,
        dataset_root=processed.tree_after.root,
        record_count=processed.tree_after.records,
    )
    session.add(after)
    schedule_destruction(session, before.model_id, before.dataset_digest, now())
    kept_until = now() + timedelta(seconds=retention_seconds)
    schedule_destruction(session, before.model_id, before.posterior_digest, kept_until)
    for digest in (after.posterior_digest, after.dataset_digest):
        adopt(session, after.model_id, digest)
    session.flush()
    return after


def _erase(session: Session, claim: Claim, worker: str) -> None:
    """The rows are gone from the new data set; here goes what said whose they were, and the person's key."""
    forgotten = records_of(claim.model_id, claim.batch_id)
    subject_ids = session.scalars(select(Record.subject_id).distinct().where(forgotten)).all()
    session.execute(delete(Record).where(forgotten).execution_options(synchronize_session=False))
    keys = forget_subjects(session, subject_ids)
    audit.record(session, worker, "records.erased", claim.model_id, records=len(claim.forgotten), keys_destroyed=keys)
