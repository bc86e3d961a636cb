"""Receipts, certificates of absence and certificates: contents and signatures."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol

from service.store.canonical_json import canonical_json, canonical_object
from service.store.certificates.software import software
from service.store.datasets.tree import DatasetTree, prove_forgotten
from service.store.deletions.views import DeletionView
from service.store.log.leaves import encode_leaf
from service.store.log.merkle import leaf_hash
from service.store.signing.statements import StatementSigner, write_bundle
from service.store.tables import Deletion, Model, Version
from vocabulary.bound import Bound, Rung
from vocabulary.certificate import (
    ABSENCE_TYPE,
    CERTIFICATE_TYPE,
    RECEIPT_TYPE,
    STATEMENT_TYPE,
    AbsencePredicate,
    AbsenceStatement,
    BatchFacts,
    DatasetChange,
    DatasetFacts,
    Digest,
    ErasureFacts,
    ForgottenProof,
    LogName,
    LogPromise,
    ModelFacts,
    NamedRecord,
    Policy,
    ReceiptPredicate,
    ReceiptStatement,
    RecordCounts,
    RequestFacts,
    Subject,
)
from vocabulary.effects import Effects, WorstExample
from vocabulary.families import current_config
from vocabulary.levels import Level
from vocabulary.signed_model import OrderedModel

PROMISE_SECONDS = 2
"""Seconds within which a signed checkpoint of the log covers an entry."""
DATASET_NOT_PROVED = (
    "That the data-set roots were computed from the rows on which the model stands, with commitments in order, rests "
    "on the software that signed this; whoever may see the retained rows can recompute the second root."
)
ERASURE_NOT_PROVED = (
    "A file that is scheduled for destruction still exists at the time of this certificate: the log's entry "
    "artifact.destroyed with its digest says when it was destroyed. Backups, and versions or snapshots that the "
    "storage itself keeps, are not covered."
)
NOT_PROVED = (DATASET_NOT_PROVED, ERASURE_NOT_PROVED)
WORST_NOT_SHOWN = (
    "The worst example of the membership attack is left out: it is a record of another request in the same batch."
)
ABSENCE_NOT_PROVED = (
    "Subjects are found by the identities that models were registered with; records kept under another identity, or "
    "outside Lethe, are not covered."
)


@dataclass(frozen=True)
class Evidence:
    """Result of a worker's computation. The store signs it and adds nothing to the bound."""

    epsilon: float
    level: Level
    rungs: Sequence[Rung]
    seconds: float
    bound: Bound | None = None
    """None if the policy was missed: then nothing is published."""
    effects: Effects | None = None
    worst_record: int | None = None
    """Number of the record that is the worst example of the membership attack."""


def sign_receipt(signer: StatementSigner, view: DeletionView) -> str:
    """Return the bundle that says that the request is stored durably and will be in the log."""
    promise = LogPromise(
        origin=signer.origin, leaf=leaf_hash(encode_leaf(**received_entry(view))).hex(), within_seconds=PROMISE_SECONDS
    )
    statement = ReceiptStatement(
        type=STATEMENT_TYPE,
        subject=[_request_subject(view)],
        predicateType=RECEIPT_TYPE,
        predicate=ReceiptPredicate(**_request_members(view), log=promise),
    )
    return write_bundle(signer.sign(statement.to_canonical_json()))


def received_entry(view: DeletionView) -> dict[str, Any]:
    """Return the audit entry of a new deletion. The receipt names it by its hash, so its bytes must not change."""
    details: dict[str, Any] = {"subjects": sorted(view.commitments)}
    if view.records:
        records = (record.to_json() for record in view.records)
        details["records"] = sorted(records, key=lambda record: (record["model"], record["record"]))
    return {
        "actor": view.deletion.caller,
        "action": "deletion.received",
        "concerns": str(view.deletion.id),
        "details": details,
        "at": view.deletion.received_at,
    }


class Certified(Protocol):
    """What a batch did to a model. All of its certificates share it."""

    predicate_type: ClassVar[str]

    @property
    def model(self) -> Model: ...

    @property
    def version(self) -> Version:
        """The last version that the certificates are about."""

    @property
    def level(self) -> str: ...

    @property
    def epsilon(self) -> float | None: ...

    @property
    def subjects(self) -> bytes:
        """Canonical JSON of the statement's subjects."""

    @property
    def members(self) -> Mapping[str, bytes]:
        """Canonical JSON of the shared members of the predicate, by name."""

    def members_for(self, deletion_id: uuid.UUID, records: Collection[int]) -> Mapping[str, bytes]:
        """Return the same for the certificate of one deletion, which shows nothing of other deletions' records."""

    def prove(self, records: Collection[int]) -> OrderedModel:
        """Return the member `forgotten`: the proof about the records of one deletion."""


@dataclass(frozen=True)
class Forgetting:
    """A version was replaced by one that forgot."""

    predicate_type: ClassVar[str] = CERTIFICATE_TYPE
    model: Model
    policy: Mapping[str, Any]
    before: Version
    after: Version
    tree_before: DatasetTree
    tree_after: DatasetTree
    bound: Bound
    effects: Effects
    rungs: Sequence[Rung]
    seconds: float
    erasure: ErasureFacts
    worst_record: int | None = None
    """Number of the record that is the worst example of the membership attack."""
    worst_commitments: Mapping[uuid.UUID, str] = field(default_factory=dict)
    """Commitments to its subject, by deletion; none where the record itself was named."""

    @property
    def version(self) -> Version:
        return self.after

    @property
    def level(self) -> str:
        return self.bound.level

    @property
    def epsilon(self) -> float:
        return self.bound.epsilon

    def prove(self, records: Collection[int]) -> ForgottenProof:
        return prove_forgotten(self.tree_before, self.tree_after, records)

    @functools.cached_property
    def subjects(self) -> bytes:
        """Canonical JSON of the statement's subjects: the version before and the one after."""
        return canonical_json([version_subject(self.model, version).to_dict() for version in (self.before, self.after)])

    @functools.cached_property
    def members(self) -> Mapping[str, bytes]:
        """Canonical JSON by name. Most of a certificate, and nearly all of the time that writing it takes."""
        model, before, after = self.model, self.before, self.after
        facts = BatchFacts(
            model=model_facts(model),
            records=RecordCounts(
                before=before.record_count,
                after=after.record_count,
                forgotten_in_batch=before.record_count - after.record_count,
            ),
            dataset=DatasetChange(
                before=dataset_facts(before, self.tree_before), after=dataset_facts(after, self.tree_after)
            ),
            policy=Policy.model_validate(self.policy),
            bound=self.bound,
            rungs=list(self.rungs),
            effects=self._effects_with(None),
            seconds=self.seconds,
            erasure=self.erasure,
            not_proved=[*NOT_PROVED, *([WORST_NOT_SHOWN] if self._worst else [])],
            software=software(),
        )
        return {name: canonical_json(value) for name, value in facts.to_dict().items()}

    def members_for(self, deletion_id: uuid.UUID, records: Collection[int]) -> Mapping[str, bytes]:
        """Return the members; the worst example is shown only to the deletion that it is a record of."""
        if self._worst is None or self.worst_record not in records:
            return self.members
        worst = self._worst.model_copy(update={"commitment": self.worst_commitments.get(deletion_id)})
        effects = canonical_json(self._effects_with(worst).to_dict())
        return {**self.members, "effects": effects, "not_proved": canonical_json(list(NOT_PROVED))}

    @property
    def _worst(self) -> WorstExample | None:
        return self.effects.membership.worst if self.effects.membership else None

    def _effects_with(self, worst: WorstExample | None) -> Effects:
        if self.effects.membership is None:
            return self.effects
        membership = self.effects.membership.model_copy(update={"worst": worst})
        return self.effects.model_copy(update={"membership": membership})


@dataclass(frozen=True)
class IssuedCertificate:
    id: uuid.UUID
    bundle: str
    statement: str
    """SHA-256 of the statement, by which the log names it."""


def issue(
    signer: StatementSigner,
    certified: Certified,
    deletion: Deletion,
    commitments: Iterable[str],
    named_records: Iterable[int],
    forgotten: Collection[int],
    issued_at: datetime,
) -> IssuedCertificate:
    """Sign the certificate of one deletion in one model. `forgotten` are its records there."""
    certificate_id = uuid.uuid4()
    facts = RequestFacts(
        certificate=str(certificate_id),
        deletion=str(deletion.id),
        regulation=deletion.regulation,
        subjects=sorted(commitments),
        named_records=sorted(named_records),
        received_at=deletion.received_at,
        due_at=deletion.due_at,
        issued_at=issued_at,
        log=LogName(origin=signer.origin),
    )
    members = {name: canonical_json(value) for name, value in facts.to_dict().items()}
    proof = certified.prove(forgotten).to_canonical_json()
    statement = canonical_object(
        {
            "_type": canonical_json(STATEMENT_TYPE),
            "subject": certified.subjects,
            "predicateType": canonical_json(certified.predicate_type),
            "predicate": canonical_object(
                {**certified.members_for(deletion.id, forgotten), **members, "forgotten": proof}
            ),
        }
    )
    digest = hashlib.sha256(statement).hexdigest()
    return IssuedCertificate(certificate_id, write_bundle(signer.sign(statement)), digest)


def sign_absence(signer: StatementSigner, view: DeletionView, models_in_store: int, issued_at: datetime) -> str:
    """Sign that no model held what the deletion names. Return the bundle."""
    statement = AbsenceStatement(
        type=STATEMENT_TYPE,
        subject=[_request_subject(view)],
        predicateType=ABSENCE_TYPE,
        predicate=AbsencePredicate(
            **_request_members(view),
            issued_at=issued_at,
            log=LogName(origin=signer.origin),
            **({"models": view.deletion.models} if view.deletion.models else {}),
            models_in_store=models_in_store,
            statement=view.deletion.outcome,
            not_proved=[ABSENCE_NOT_PROVED],
            software=software(),
        ),
    )
    return write_bundle(signer.sign(statement.to_canonical_json()))


def _request_members(view: DeletionView) -> dict[str, Any]:
    """Return what was requested, and when. Records are left out where none was named."""
    members: dict[str, Any] = {
        "deletion": str(view.deletion.id),
        "regulation": view.deletion.regulation,
        "subjects": sorted(view.commitments),
        "received_at": view.deletion.received_at,
    }
    if view.records:
        members["records"] = [NamedRecord(**record.to_json()) for record in view.records]
    return members


def _request_subject(view: DeletionView) -> Subject:
    digest = hashlib.sha256("\n".join(sorted(view.commitments)).encode()).hexdigest()
    return Subject(name=f"deletion/{view.deletion.id}", digest=Digest(sha256=digest))


def version_subject(model: Model, version: Version) -> Subject:
    name = f"model/{model.id}/version/{version.number}"
    return Subject(name=name, digest=Digest(sha256=version.posterior_digest))


def model_facts(model: Model) -> ModelFacts:
    return ModelFacts(
        id=str(model.id),
        name=model.name,
        family=model.family,
        posterior=model.posterior_kind,
        config=current_config(model.family, model.config),
    )


def dataset_facts(version: Version, tree: DatasetTree) -> DatasetFacts:
    return DatasetFacts(digest=version.dataset_digest, root=tree.root, records=tree.records)
