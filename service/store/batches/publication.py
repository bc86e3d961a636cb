"""Publication of a batch: one transaction makes the new version current, erases, completes and certifies."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.artifacts.erasure import schedule_erasure
from service.store.artifacts.store import adopt
from service.store.batches.erasure import erase
from service.store.batches.lifecycle import Claim, end_batch, in_batch
from service.store.certificates.issuance import complete_and_certify
from service.store.certificates.statements import Evidence, Forgetting
from service.store.certificates.verification import log_and_verify
from service.store.clock import current_time
from service.store.datasets.tree import DatasetTree
from service.store.deletions.bodies import delete_bodies
from service.store.deletions.lifecycle import refresh
from service.store.dialect import allow_long_work
from service.store.errors import PolicyMissed
from service.store.models.registry import DrawCount, count_draws, current_version
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner
from service.store.states import BatchStatus
from service.store.tables import DeletionSubject, DeletionTarget, Model, Record, Version
from vocabulary.bound import Bound, Rung
from vocabulary.certificate import ErasureFacts
from vocabulary.effects import Effects
from vocabulary.levels import is_at_least
from vocabulary.references import is_as_strong


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch. Both files are already stored."""

    posterior_digest: str
    dataset_digest: str
    tree_before: DatasetTree
    tree_after: DatasetTree
    device: str
    evidence: Evidence
    draws: DrawCount | None = None
    """Of a sample set."""

    @property
    def digests(self) -> tuple[str, str]:
        return self.posterior_digest, self.dataset_digest


def publish(
    session: Session, claim: Claim, result: BatchResult, signer: StatementSigner, retention_seconds: float
) -> Sequence[uuid.UUID]:
    """Make the new version current, erase, complete and certify: all or nothing. Return the certificate ids."""
    allow_long_work(session)
    batch = end_batch(session, claim.batch_id, BatchStatus.PUBLISHED)
    require_active(session, signer)
    batch.phase, batch.percent = "published", 100.0
    batch.device, batch.rungs = result.device, [rung.to_dict() for rung in result.evidence.rungs]
    model = session.get_one(Model, claim.model_id)
    bound, effects = _require_policy(claim.policy, result.evidence)
    before = current_version(session, claim.model_id)
    after = _add_version(session, before, result)
    erasure = _schedule_erasure(session, model, before, after, retention_seconds)
    audit.record(
        session,
        batch.worker,
        "version.published",
        model.id,
        batch=str(batch.id),
        posterior=after.posterior_digest,
        dataset=after.dataset_digest,
        epsilon=result.evidence.epsilon,
        level=result.evidence.level,
    )
    audit.record_rungs(session, batch.worker, batch.id, result.evidence.rungs)
    forgetting = Forgetting(
        model=model,
        policy=claim.policy,
        before=before,
        after=after,
        tree_before=result.tree_before,
        tree_after=result.tree_after,
        bound=bound,
        effects=effects,
        worst_record=result.evidence.worst_record,
        worst_commitments=_find_worst_commitments(session, claim, result.evidence.worst_record),
        rungs=result.evidence.rungs,
        seconds=result.evidence.seconds,
        erasure=erasure,
    )
    certified = complete_and_certify(session, batch.id, forgetting, signer)
    body_ids = erase(session, batch, in_batch(claim.model_id, claim.batch_id))
    refresh(session, certified)
    delete_bodies(session, body_ids)
    return log_and_verify(session, signer, certified.values())


def _require_policy(policy: Mapping[str, Any], evidence: Evidence) -> tuple[Bound, Effects]:
    """Return bound and effects. Raises PolicyMissed unless they meet the policy, whatever the worker concluded."""
    epsilon, level = policy["epsilon"], policy["level"]
    is_met = evidence.epsilon <= epsilon and is_at_least(evidence.level, level)
    if not is_met or evidence.bound is None or evidence.effects is None:
        tried = ", ".join(_describe_rung(rung) for rung in evidence.rungs)
        raise PolicyMissed(
            f"the bound reached is {evidence.epsilon:.3g} at level {evidence.level}, but the model's policy requires "
            f"{epsilon:.3g} at level {level}; nothing was published. Tried: {tried}. Allow more rungs or time in the "
            "policy. As a last resort, request the deletion of all records of the model: that destroys it."
        )
    reference, required = evidence.bound.reference_kind, policy["reference"]
    if reference is not None and not is_as_strong(reference, required):
        raise PolicyMissed(f"the bound compares with the {reference}, but the policy requires the {required}")
    return evidence.bound, evidence.effects


def _describe_rung(rung: Rung) -> str:
    return f"{rung.name} ({rung.seconds:.2g} s{f': {rung.failure}' if rung.failure else ''})"


def _find_worst_commitments(session: Session, claim: Claim, worst_record: int | None) -> dict[uuid.UUID, str]:
    """Return the commitments to the worst record's subject in the deletions of the batch that name the subject."""
    query = (
        select(DeletionSubject.deletion_id, DeletionSubject.commitment)
        .join(Record, Record.subject_id == DeletionSubject.subject_id)
        .join(DeletionTarget, DeletionTarget.deletion_id == DeletionSubject.deletion_id)
        .where(DeletionTarget.batch_id == claim.batch_id)
        .where(Record.model_id == claim.model_id, Record.record == worst_record)
    )
    return dict(session.execute(query).all())


def _add_version(session: Session, before: Version, result: BatchResult) -> Version:
    """Make the new version current and keep its files."""
    before.superseded_at = current_time(session)
    session.flush()
    after = Version(
        id=uuid.uuid4(),
        model_id=before.model_id,
        number=before.number + 1,
        posterior_digest=result.posterior_digest,
        dataset_digest=result.dataset_digest,
        dataset_root=result.tree_after.root,
        record_count=result.tree_after.records,
        created_at=before.superseded_at,
    )
    count_draws(after, result.draws)
    session.add(after)
    for digest in result.digests:
        adopt(session, after.model_id, digest)
    session.flush()
    return after


def _schedule_erasure(
    session: Session, model: Model, before: Version, after: Version, retention_seconds: float
) -> ErasureFacts:
    """Schedule the destruction of the model's other files. Superseded posteriors may be retained for a while."""
    retained = {after.posterior_digest, after.dataset_digest, model.never_seen_digest or ""}
    return schedule_erasure(session, before, retained, after.created_at + timedelta(seconds=retention_seconds))
