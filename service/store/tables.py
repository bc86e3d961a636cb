"""Tables. Constraints and partial indexes enforce exclusivity in the database."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.store.dialect import CLOCK, UtcDateTime, partial_index
from service.store.states import CallbackStatus, Device


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON, bytes: LargeBinary, float: Float(53)}  # noqa: RUF012


class Token(Base):
    """Bearer token, stored as a hash. A caller can have several tokens at once, for rotation."""

    __tablename__ = "tokens"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    caller: Mapped[str] = mapped_column(String(100))
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    expires_at: Mapped[datetime | None]
    """Null for a token that does not expire."""
    revoked_at: Mapped[datetime | None]
    models: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Ids of the only models that it may name and see. Null for all."""
    networks: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """The only networks from which it is accepted, in CIDR notation. Null for all."""


class Subject(Base):
    """Person, known only by a keyed hash. Deleting the row destroys the key and unlinks every commitment."""

    __tablename__ = "subjects"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    lookup: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    key: Mapped[bytes] = mapped_column(LargeBinary(32))


class ErasureTrace(Base):
    """Erasure whose dead rows are still in the database's files. The sweep removes both (erasure_traces.py)."""

    __tablename__ = "erasure_traces"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)


class SecretCheck(Base):
    """Check value of a secret, so that no process works with another one (access/secret_checks.py)."""

    __tablename__ = "secret_checks"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    """Environment variable of the secret."""
    value: Mapped[bytes] = mapped_column(LargeBinary(32))


class Model(Base):
    """Registered model."""

    __tablename__ = "models"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(100))
    family: Mapped[str] = mapped_column(String(50))
    posterior_kind: Mapped[str] = mapped_column(String(16))
    """Kind of posterior: `variational`, `samples` or `ensemble`."""
    device: Mapped[str] = mapped_column(String(16), default=Device.CPU)
    """Device that its workers need; fixed at registration."""
    turn: Mapped[int] = mapped_column(default=0)
    """Number of batches begun. The latest batch answers every doorbell rung before it (batches/lifecycle.py)."""
    config: Mapped[dict[str, Any]]
    policy: Mapped[dict[str, Any]]
    """Requirements on a published version: epsilon, level, rungs, seconds."""
    never_seen_digest: Mapped[str | None] = mapped_column(String(64))
    """Rows that the model was not trained on, compared with the forgotten ones. They are nobody's records."""
    destroyed_at: Mapped[datetime | None]
    """When its last records were deleted, and the model with them (batches/destruction.py)."""
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)


class Record(Base):
    """Link from a row of a model's data set to its subject. The row's content is in the data-set artifact."""

    __tablename__ = "records"
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    record: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Row number at registration. It never changes."""
    subject_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("subjects.id"), index=True)


class Artifact(Base):
    """File named by its SHA-256 in its model's folder, from before it is written to its logged destruction."""

    __tablename__ = "artifacts"
    model_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    """No foreign key: a model's first files are written before its row."""
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    destroy_at: Mapped[datetime | None] = mapped_column(index=True)
    destroyed_at: Mapped[datetime | None]


class Version(Base):
    """Posterior of a model with its data set. The version that is not superseded is current."""

    __tablename__ = "versions"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"))
    number: Mapped[int]
    posterior_digest: Mapped[str] = mapped_column(String(64))
    dataset_digest: Mapped[str] = mapped_column(String(64))
    dataset_root: Mapped[str | None] = mapped_column(String(64))
    """Merkle root over the commitments of its records (datasets/tree.py). Null for versions older than the column."""
    record_count: Mapped[int]
    readiness: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """A worker's check of the version: how converged it is, which levels it can reach. Null until checked."""
    draws: Mapped[int | None]
    """Draws of a sample set. Null for other posteriors, and until a worker has read it."""
    effective_draws: Mapped[float | None]
    """Number of even draws that the weighted ones are worth: (Σw)²/Σw²."""
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    superseded_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        partial_index("uq_versions_current", "model_id", where="superseded_at IS NULL", unique=True),
    )


class Deletion(Base):
    """Request to delete subjects or records from models."""

    __tablename__ = "deletions"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    caller: Mapped[str] = mapped_column(String(100))
    regulation: Mapped[str] = mapped_column(String(10))
    status: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str] = mapped_column(String(64))
    """Id of the HTTP request that created it. Every log line about the deletion contains it."""
    received_at: Mapped[datetime] = mapped_column(default=CLOCK)
    due_at: Mapped[datetime] = mapped_column(index=True)
    """Deadline by its regulation, fixed at receipt. Only an extension moves it."""
    extension_reason: Mapped[str | None] = mapped_column(Text)
    completed_at: Mapped[datetime | None]
    callback_urls: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """URLs that are called when its status changes. Null if there are none."""
    body_id: Mapped[uuid.UUID | None]
    """Body of the request that it was part of. No foreign key: the body goes before the deletion."""
    models: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Ids of the models in which its subjects were looked for. Null for all."""
    binding_at: Mapped[datetime | None] = mapped_column(default=CLOCK)
    """From then on its caller can no longer cancel it and sees which models it concerns. Null if it was cancelled
    before: then its caller never sees that."""

    __table_args__ = (  # one index per filter of the list, newest first
        Index("ix_deletions_received_at_id", "received_at", "id"),
        Index("ix_deletions_caller_received_at_id", "caller", "received_at", "id"),
        Index("ix_deletions_status_received_at_id", "status", "received_at", "id"),
        Index("ix_deletions_regulation_received_at_id", "regulation", "received_at", "id"),
    )


class DeletionSubject(Base):
    """Subject of a deletion. The link to the subject is removed when the subject's last record is erased."""

    __tablename__ = "deletion_subjects"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    commitment: Mapped[str] = mapped_column(String(64), primary_key=True)
    subject_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("subjects.id", ondelete="SET NULL"), index=True)


class DeletionRecord(Base):
    """Record that a deletion names by its row number at registration. It stays when the record is erased."""

    __tablename__ = "deletion_records"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    record: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class DeletionTarget(Base):
    """Part of a deletion in one model: the unit that is claimed, retried and certified."""

    __tablename__ = "deletion_targets"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    received_at: Mapped[datetime]
    """Copy of the deletion's time, which never changes, so that one index has a model's deletions in list order."""
    batch_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("batches.id"), index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[datetime]
    """Earliest start of the next attempt: the end of the batch window, later the end of the backoff."""
    batch_limit: Mapped[int | None]
    """Largest batch that it may join, set after a larger one failed for good. Null for any size."""
    failure: Mapped[str | None] = mapped_column(Text)
    policy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Model's policy when the request was received. Null while the model still has that policy: before a change the
    old policy is copied here (models/policies.py)."""

    __table_args__ = (
        Index("ix_deletion_targets_model_id_status", "model_id", "status"),
        Index("ix_deletion_targets_model_id_received_at_deletion_id", "model_id", "received_at", "deletion_id"),
    )


class Batch(Base):
    """Deletions of one model that a worker processes together.

    Its id is the fencing token: only a running batch can be published, and a takeover ends it.
    """

    __tablename__ = "batches"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), index=True)
    status: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str] = mapped_column(String(200))
    phase: Mapped[str] = mapped_column(String(32), default="claimed")
    percent: Mapped[float] = mapped_column(default=0.0)
    lease_expires_at: Mapped[datetime]
    started_at: Mapped[datetime] = mapped_column(default=CLOCK)
    finished_at: Mapped[datetime | None]
    failure: Mapped[str | None] = mapped_column(Text)
    device: Mapped[str | None] = mapped_column(String(32))
    rungs: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Rungs that were tried, each with its bound and its seconds."""
    trace: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Progress at the last lease renewal: seconds of each phase, residual after each step."""

    __table_args__ = (
        Index("ix_batches_started_at_id", "started_at", "id"),
        partial_index("uq_batches_running", "model_id", where="status = 'running'", unique=True),
    )


class Refresh(Base):
    """Continuation of a version's chains on its records, for draws with even weights (refreshes/lifecycle.py).

    A model has at most one that is unfinished, and only while no batch of the model runs: the claim of a batch ends it.
    """

    __tablename__ = "refreshes"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), index=True)
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("versions.id"), index=True)
    """Version whose chains continue."""
    status: Mapped[str] = mapped_column(String(16))
    claim_id: Mapped[uuid.UUID | None]
    """Fencing token, new with each claim: only the worker that claimed last can write. Null if none holds it."""
    worker: Mapped[str | None] = mapped_column(String(200))
    """Worker that claimed it last."""
    phase: Mapped[str] = mapped_column(String(32), default="waiting")
    percent: Mapped[float] = mapped_column(default=0.0)
    lease_expires_at: Mapped[datetime | None]
    crashes: Mapped[int] = mapped_column(default=0)
    """Workers that stopped answering while they held it."""
    checkpoint_digest: Mapped[str | None] = mapped_column(String(64))
    """State of the chains from which another worker continues."""
    posterior_digest: Mapped[str | None] = mapped_column(String(64))
    """New posterior, stored and about to be published."""
    started_at: Mapped[datetime] = mapped_column(default=CLOCK)
    finished_at: Mapped[datetime | None]
    failure: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (
        Index("ix_refreshes_started_at_id", "started_at", "id"),
        partial_index("uq_refreshes_unfinished", "model_id", where="finished_at IS NULL", unique=True),
    )


class BatchPart(Base):
    """Member of an ensemble that a batch trains again, offered to all workers (batches/parts.py)."""

    __tablename__ = "batch_parts"
    batch_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    member: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str | None] = mapped_column(String(200))
    """Worker that took it last."""
    lease_expires_at: Mapped[datetime | None]
    """Until then nobody else may take it. Null if it is free."""
    digest: Mapped[str | None] = mapped_column(String(64))
    """File of the trained member. Null until it is trained."""


class Certificate(Base):
    """Certificate of a deletion in one model."""

    __tablename__ = "certificates"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"))
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"))
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("versions.id"))
    batch_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("batches.id"))
    level: Mapped[str] = mapped_column(String(16))
    """Level of its bound, or `destroyed`."""
    epsilon: Mapped[float | None]
    """Null for a destroyed model: nothing came after it that a bound could be about."""
    issued_at: Mapped[datetime] = mapped_column(default=CLOCK)
    bundle: Mapped[str] = mapped_column(Text)
    """Bundle as signed. The download also contains its log entry with a proof (certificates/bundles.py)."""
    replaced_by: Mapped[uuid.UUID | None]
    """Certificate issued in its stead, because its key was revoked. No foreign key: that one is inserted after."""

    __table_args__ = (
        partial_index("uq_certificates_current", "deletion_id", "model_id", where="replaced_by IS NULL", unique=True),
        Index("ix_certificates_issued_at_id", "issued_at", "id"),
        Index("ix_certificates_model_id_issued_at_id", "model_id", "issued_at", "id"),
    )


class Absence(Base):
    """Certificate of absence: no model held the subject, so the deletion was complete on arrival."""

    __tablename__ = "absences"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    issued_at: Mapped[datetime] = mapped_column(default=CLOCK)
    bundle: Mapped[str] = mapped_column(Text)


class ReplacedAbsence(Base):
    """Certificate of absence in whose stead another was issued, because its key was revoked."""

    __tablename__ = "replaced_absences"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    statement: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of its statement, by which its successor names it."""
    issued_at: Mapped[datetime]
    bundle: Mapped[str] = mapped_column(Text)


class PendingAbsence(Base):
    """Deletion of what no model held at receipt. It is completed and certified once it is binding."""

    __tablename__ = "pending_absences"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    binding_at: Mapped[datetime] = mapped_column(index=True)
    """Copy of the deletion's time."""
    models_in_store: Mapped[int]
    """Number of models that were searched at receipt."""


class IdempotencyKey(Base):
    """First answer to an idempotency key, repeated byte for byte forever."""

    __tablename__ = "idempotency_keys"
    caller: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    """Keyed hash of the key that the caller sent."""
    kind: Mapped[str] = mapped_column(String(16))
    """Kind of request: `deletion` or `bulk`."""
    body_id: Mapped[uuid.UUID] = mapped_column(unique=True)
    """Body that a repeated request is compared with, as long as it exists."""
    body_mac: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Keyed hash of the body under the caller's own key, if that is random."""
    response: Mapped[str] = mapped_column(Text)


class RequestBody(Base):
    """Salted, keyed hash of what a pending request names. Deleted when the request ends (deletions/bodies.py)."""

    __tablename__ = "request_bodies"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    salt: Mapped[bytes] = mapped_column(LargeBinary(32))
    mac: Mapped[bytes] = mapped_column(LargeBinary(32))


class OpenDsrRequest(Base):
    """Deletion received over OpenDSR, with the id that its sender chose."""

    __tablename__ = "opendsr_requests"
    caller: Mapped[str] = mapped_column(String(100), primary_key=True)
    subject_request_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), unique=True)


class Callback(Base):
    """Message to one URL about one deletion. Its id is the event id, by which a receiver recognises repetitions."""

    __tablename__ = "callbacks"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"))
    sequence: Mapped[int]
    """Number among the deletion's callbacks. Each URL gets them in this order."""
    caller: Mapped[str] = mapped_column(String(100), server_default="")
    """The deletion's caller: senders serve callers in turn."""
    url: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(Text, server_default="")
    """Host of the URL. Empty for callbacks that were delivered before migration 0016."""
    message: Mapped[dict[str, Any]]
    """Content at the time of the event. It is signed when it is sent."""
    status: Mapped[str] = mapped_column(String(16), default=CallbackStatus.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[datetime] = mapped_column(default=CLOCK)
    lease_expires_at: Mapped[datetime | None]
    """Until then the sender that claimed it may be sending it."""
    failure: Mapped[str | None] = mapped_column(Text)
    """Reason of the last failed attempt."""
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    delivered_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("deletion_id", "sequence"),
        Index("ix_callbacks_created_at_id", "created_at", "id"),
        Index("ix_callbacks_status_created_at_id", "status", "created_at", "id"),
        partial_index("ix_callbacks_waiting", "caller", "not_before", where="status = 'pending'"),
    )


class AuditEntry(Base):
    """Audited event, written in the event's own transaction."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=CLOCK)
    actor: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(40))
    concerns: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]]
    leaf_index: Mapped[int | None] = mapped_column(BigInteger, unique=True, index=True)
    """Index in the log, assigned by the sequencer (log/sequencing.py). Null until then."""

    __table_args__ = (
        # The sequencer's query.
        partial_index("ix_audit_entries_unplaced", "id", where="leaf_index IS NULL"),
        # At most one summary per day, however many sweeps run.
        partial_index("uq_audit_entries_summary", "concerns", where="action = 'summary.daily'", unique=True),
    )


class LogTile(Base):
    """Up to 256 hashes of the log's tree: of leaves at level 0, of full tiles of the level below otherwise."""

    __tablename__ = "log_tiles"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hashes: Mapped[bytes] = mapped_column(LargeBinary)


class Checkpoint(Base):
    """Signed state of the log. The checkpoint with the largest size is the current one."""

    __tablename__ = "checkpoints"
    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    root: Mapped[bytes] = mapped_column(LargeBinary(32))
    note: Mapped[str] = mapped_column(Text)
    """C2SP signed note with our signature alone."""
    cosignatures: Mapped[str] = mapped_column(Text, default="")
    """Signature lines of witnesses, appended to the note when it is published."""
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    published_at: Mapped[datetime | None]
    """Time of its publication outside the service, if that is configured."""


class SigningKey(Base):
    """Public key of a signing key. Never deleted, since what it signed must stay verifiable."""

    __tablename__ = "signing_keys"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    use: Mapped[str | None] = mapped_column(String(16))
    """What it signs (states.SigningUse). Null for keys that are older than the column, which signed everything."""
    created_at: Mapped[datetime] = mapped_column(default=CLOCK)
    retired_at: Mapped[datetime | None]
    """The key signs nothing after this time. What it signed before stays valid."""
    revoked_at: Mapped[datetime | None]
    """The key is not trusted from this time on, since it may have leaked."""
    reason: Mapped[str | None] = mapped_column(Text)
