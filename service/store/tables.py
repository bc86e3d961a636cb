"""The tables. The database enforces exclusivity, not a comment."""

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

from service.store.dialect import UtcDateTime, partial_index
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
    """A bearer token, of which only the hash is kept. Several tokens of one caller may overlap for rotation."""

    __tablename__ = "tokens"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    caller: Mapped[str] = mapped_column(String(100))
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
    revoked_at: Mapped[datetime | None]


class Subject(Base):
    """A person, known only by a keyed hash. Deleting the row destroys the key and unlinks every commitment."""

    __tablename__ = "subjects"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    lookup: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    key: Mapped[bytes] = mapped_column(LargeBinary(32))


class Model(Base):
    __tablename__ = "models"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(100))
    family: Mapped[str] = mapped_column(String(50))
    posterior_kind: Mapped[str] = mapped_column(String(16))
    """`variational` parameters, or `samples` of a chain."""
    device: Mapped[str] = mapped_column(String(16), default=Device.CPU)
    """Which workers may take it; fixed at registration."""
    turn: Mapped[int] = mapped_column(default=0)
    """Counts its batches. A doorbell rung before the latest one began is answered by it (batches.py)."""
    config: Mapped[dict[str, Any]]
    policy: Mapped[dict[str, Any]]
    """What a version must meet to be published: epsilon, level, rungs, seconds."""
    never_seen_digest: Mapped[str | None] = mapped_column(String(64))
    """Rows that the model was not trained on, to compare the forgotten ones with; nobody's records."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class Record(Base):
    """Which rows of a model's data set belong to whom. The rows themselves are in the data-set artifact."""

    __tablename__ = "records"
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    record: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """The row's number at registration, kept for life."""
    subject_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("subjects.id"), index=True)


class Artifact(Base):
    """A file under its SHA-256, inside its model's folder, from its writing to its logged destruction."""

    __tablename__ = "artifacts"
    model_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    """No foreign key: a model's first files are written before the model is."""
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=now)
    destroy_at: Mapped[datetime | None] = mapped_column(index=True)
    destroyed_at: Mapped[datetime | None]


class Version(Base):
    """One posterior of a model and the data set it stands for. The one not superseded is current."""

    __tablename__ = "versions"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"))
    number: Mapped[int]
    posterior_digest: Mapped[str] = mapped_column(String(64))
    dataset_digest: Mapped[str] = mapped_column(String(64))
    dataset_root: Mapped[str | None] = mapped_column(String(64))
    """Merkle root over the commitments of its records (dataset_tree.py). Null for versions older than this column."""
    record_count: Mapped[int]
    readiness: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What a worker found out about it: how converged it is, which levels it can reach. Null until one has looked."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    superseded_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        partial_index("uq_versions_current", "model_id", where="superseded_at IS NULL", unique=True),
    )


class Deletion(Base):
    __tablename__ = "deletions"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    caller: Mapped[str] = mapped_column(String(100))
    regulation: Mapped[str] = mapped_column(String(10))
    status: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str] = mapped_column(String(64))
    """Of the HTTP request that brought it; every log line about this deletion carries it."""
    received_at: Mapped[datetime] = mapped_column(default=now)
    due_at: Mapped[datetime] = mapped_column(index=True)
    """As its regulation counts, frozen at receipt; later only by an extension."""
    extension_reason: Mapped[str | None] = mapped_column(Text)
    completed_at: Mapped[datetime | None]
    callback_urls: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Who is told when its status changes. Null if nobody is."""

    __table_args__ = (  # one for each way to page through them, newest first
        Index("ix_deletions_received_at_id", "received_at", "id"),
        Index("ix_deletions_caller_received_at_id", "caller", "received_at", "id"),
        Index("ix_deletions_status_received_at_id", "status", "received_at", "id"),
        Index("ix_deletions_regulation_received_at_id", "regulation", "received_at", "id"),
    )


class DeletionSubject(Base):
    """Whom a deletion names. The link to the person goes when the person's last record is erased."""

    __tablename__ = "deletion_subjects"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    commitment: Mapped[str] = mapped_column(String(64), primary_key=True)
    subject_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("subjects.id", ondelete="SET NULL"), index=True)


class DeletionRecord(Base):
    """A row that a deletion names by its number at registration. It stays when the row is erased."""

    __tablename__ = "deletion_records"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    record: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class DeletionTarget(Base):
    """A deletion's part in one model: the unit that is claimed, retried and certified."""

    __tablename__ = "deletion_targets"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    received_at: Mapped[datetime]
    """The deletion's own, which never changes: so that one index holds a model's deletions in the order of the list."""
    batch_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("batches.id"), index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[datetime]
    """When an attempt may start: after the batch window at first, later after each failure."""
    batch_limit: Mapped[int | None]
    """The largest batch that it may be in, after a larger one failed for good. Null for any."""
    failure: Mapped[str | None] = mapped_column(Text)
    policy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """The model's policy when the request was received. Null as long as that is the model's policy still: whoever
    changes it leaves the old one here first (models.py)."""

    __table_args__ = (
        Index("ix_deletion_targets_model_id_status", "model_id", "status"),
        Index("ix_deletion_targets_model_id_received_at_deletion_id", "model_id", "received_at", "deletion_id"),
    )


class Batch(Base):
    """All deletions of one model that one worker removes together.

    Its id is the fencing token: whoever wants to publish must still find it running, and a takeover ends that.
    """

    __tablename__ = "batches"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"), index=True)
    status: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str] = mapped_column(String(200))
    phase: Mapped[str] = mapped_column(String(32), default="claimed")
    percent: Mapped[float] = mapped_column(default=0.0)
    lease_expires_at: Mapped[datetime]
    started_at: Mapped[datetime] = mapped_column(default=now)
    finished_at: Mapped[datetime | None]
    failure: Mapped[str | None] = mapped_column(Text)
    device: Mapped[str | None] = mapped_column(String(32))
    rungs: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Each rung that was tried, with the bound it reached and its seconds."""
    trace: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """How it went, as of the last heartbeat: the seconds of each phase, the residual after each step."""

    __table_args__ = (
        Index("ix_batches_started_at_id", "started_at", "id"),
        partial_index("uq_batches_running", "model_id", where="status = 'running'", unique=True),
    )


class Certificate(Base):
    __tablename__ = "certificates"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"))
    model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("models.id"))
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("versions.id"))
    batch_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("batches.id"))
    level: Mapped[str] = mapped_column(String(16))
    epsilon: Mapped[float]
    issued_at: Mapped[datetime] = mapped_column(default=now)
    bundle: Mapped[str] = mapped_column(Text)
    """As it was signed. What is downloaded also has its place in the log (certificates.py)."""

    __table_args__ = (
        UniqueConstraint("deletion_id", "model_id"),
        Index("ix_certificates_issued_at_id", "issued_at", "id"),
        Index("ix_certificates_model_id_issued_at_id", "model_id", "issued_at", "id"),
    )


class Absence(Base):
    """The certificate that no model held a subject: of a deletion that was complete when it arrived."""

    __tablename__ = "absences"
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), primary_key=True)
    issued_at: Mapped[datetime] = mapped_column(default=now)
    bundle: Mapped[str] = mapped_column(Text)


class IdempotencyKey(Base):
    """The first answer to a key, repeated byte for byte for ever."""

    __tablename__ = "idempotency_keys"
    caller: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    """A keyed hash of what the caller sent."""
    body_mac: Mapped[bytes] = mapped_column(LargeBinary(32))
    """Keyed, because a plain hash of a body that holds an e-mail address can be guessed."""
    deletion_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("deletions.id"))
    """Of a single request; the answer to a bulk one names its own."""
    response: Mapped[str] = mapped_column(Text)


class OpenDsrRequest(Base):
    """A deletion that came over the OpenDSR contract, under the id that its sender gave it."""

    __tablename__ = "opendsr_requests"
    caller: Mapped[str] = mapped_column(String(100), primary_key=True)
    subject_request_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"), unique=True)
    body_mac: Mapped[bytes] = mapped_column(LargeBinary(32))
    """Keyed, because the body holds identities."""


class Callback(Base):
    """One thing to tell one URL about one deletion. Its id is the event's: a receiver knows a repetition by it."""

    __tablename__ = "callbacks"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    deletion_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("deletions.id"))
    sequence: Mapped[int]
    """Counts the callbacks of a deletion, for the order in which each URL gets them."""
    url: Mapped[str] = mapped_column(Text)
    message: Mapped[dict[str, Any]]
    """What is told, as it was when it happened; signed when it is sent."""
    status: Mapped[str] = mapped_column(String(16), default=CallbackStatus.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[datetime] = mapped_column(default=now)
    lease_expires_at: Mapped[datetime | None]
    """Until then whoever claimed it may be sending it."""
    failure: Mapped[str | None] = mapped_column(Text)
    """Why the last attempt failed, in plain words."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    delivered_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("deletion_id", "sequence"),
        Index("ix_callbacks_created_at_id", "created_at", "id"),
        Index("ix_callbacks_status_created_at_id", "status", "created_at", "id"),
        partial_index("ix_callbacks_waiting", "not_before", where="status = 'pending'"),
    )


class AuditEntry(Base):
    """What happened, written in the transaction that made it happen."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=now)
    actor: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(40))
    concerns: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]]
    leaf_index: Mapped[int | None] = mapped_column(BigInteger, unique=True, index=True)
    """Its place in the log, given by the sequencer (log.py). Null until then."""

    __table_args__ = (
        # The sequencer's query.
        partial_index("ix_audit_entries_unplaced", "id", where="leaf_index IS NULL"),
        # At most one summary per day, however many sweeps run.
        partial_index("uq_audit_entries_summary", "concerns", where="action = 'summary.daily'", unique=True),
    )


class LogTile(Base):
    """Up to 256 hashes of the log's tree, side by side: those of leaves at level 0, of whole tiles below above that."""

    __tablename__ = "log_tiles"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hashes: Mapped[bytes] = mapped_column(LargeBinary)


class Checkpoint(Base):
    """The log at one moment, signed. The one with the largest size is what the log is now."""

    __tablename__ = "checkpoints"
    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    root: Mapped[bytes] = mapped_column(LargeBinary(32))
    note: Mapped[str] = mapped_column(Text)
    """A C2SP signed note, with our signature alone."""
    cosignatures: Mapped[str] = mapped_column(Text, default="")
    """Signature lines of witnesses, to be appended to the note."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    published_at: Mapped[datetime | None]
    """When it was shown outside of the service, if that is configured."""


class SigningKey(Base):
    """A public key that signed something once. Kept for ever: what it signed must be checkable for ever."""

    __tablename__ = "signing_keys"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary(32))
    created_at: Mapped[datetime] = mapped_column(default=now)
    retired_at: Mapped[datetime | None]
    """From then on we do not sign with it any more; what it signed before stays good."""
    revoked_at: Mapped[datetime | None]
    """From then on nobody may trust it: somebody else may have had it."""
    reason: Mapped[str | None] = mapped_column(Text)
