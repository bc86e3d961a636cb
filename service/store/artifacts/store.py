"""Artifacts: immutable files named by their SHA-256, in one folder per model. Writes are atomic, reads are verified."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import structlog
from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.batches.fence import holds_refresh, is_running
from service.store.clock import current_time
from service.store.database import Database
from service.store.datasets.tensor_files import Piece
from service.store.dialect import insert
from service.store.errors import ArtifactDamaged, ArtifactsUnavailable, LeaseLost
from service.store.tables import Artifact, Version

log = structlog.get_logger("artifacts")

ADOPTION_GRACE = timedelta(hours=1)
ORPHAN = "orphan"
"""Kind of a file without a row: its original kind is unknown."""
_UUID, _DIGEST = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"[0-9a-f]{64}"
_FILE_KEY = re.compile(rf"(?P<model>{_UUID})/(?P<name>{_DIGEST}|\.{_DIGEST}\.[0-9a-f]{{32}})")


@dataclass(frozen=True)
class StoredFile:
    """File in a store: an artifact named by its digest, or a draft of one."""

    model_id: uuid.UUID
    name: str

    @property
    def is_draft(self) -> bool:
        return self.name.startswith(".")

    @classmethod
    def parse(cls, key: str) -> StoredFile | None:
        """Parse `<model>/<name>`. None for names that Lethe does not write: such files belong to somebody else."""
        match = _FILE_KEY.fullmatch(key)
        return cls(uuid.UUID(match["model"]), match["name"]) if match else None


class ArtifactStore(Protocol):
    """Store of immutable files. Knows bytes and digests, not their meaning."""

    def ping(self) -> None:
        """Raise unless the store can be reached."""

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        """Store the concatenated pieces durably and return their digest. Storing them again changes nothing."""

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        """Return the file's content, verified against its digest."""

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        """Return only once the file is gone. Destroying it again changes nothing."""

    def files(self, model_id: uuid.UUID | None = None) -> Iterator[StoredFile]:
        """List the artifacts and drafts of one model, or of all. Other files are skipped."""

    def modified_at(self, file: StoredFile) -> datetime | None:
        """Return when the file was last written, or None if it is gone."""

    def abort_uploads(self, model_id: uuid.UUID) -> None:
        """Discard the parts of unfinished uploads of the model's files, which `files` does not list."""

    def keeps_versions(self) -> bool:
        """Whether the store keeps the content of destroyed files, as far as it tells."""


def digest_of(pieces: Iterable[Piece]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def draft_name(digest: str) -> str:
    return f".{digest}.{uuid.uuid4().hex}"


def verify_digest(content: bytes, digest: str) -> None:
    if digest_of([content]) != digest:
        raise ArtifactDamaged(f"the content of artifact {digest} does not match its digest; restore it from a backup")


def write_ahead(
    database: Database,
    artifacts: ArtifactStore,
    model_id: uuid.UUID,
    kind: str,
    *pieces: Piece,
    batch_id: uuid.UUID | None = None,
    refresh_claim_id: uuid.UUID | None = None,
) -> str:
    """Store a file that a later transaction will `adopt`, and return its digest.

    The row is written first and schedules the file's destruction, so that a crash before the adoption leaves no file
    that is never erased. With `batch_id`, raise LeaseLost and leave no file if the batch was taken over meanwhile; with
    `refresh_claim_id`, if the refresh was.
    """
    digest, may_write = digest_of(pieces), _fence(batch_id, refresh_claim_id)
    with database.writing() as session:
        if may_write is not None and not may_write(session):
            raise LeaseLost("what the file is for was taken over; it was not stored")
        created_at = _write_row(session, model_id, digest, kind, sum(map(len, pieces)))
    artifacts.put(model_id, *pieces)
    if may_write is not None:
        _require_in_time(database, artifacts, may_write, StoredFile(model_id, digest), created_at)
    return digest


def _fence(batch_id: uuid.UUID | None, refresh_claim_id: uuid.UUID | None) -> Callable[[Session], bool] | None:
    if batch_id is not None:
        return partial(is_running, batch_id=batch_id)
    if refresh_claim_id is not None:
        return partial(holds_refresh, claim_id=refresh_claim_id)
    return None


def _write_row(session: Session, model_id: uuid.UUID, digest: str, kind: str, size: int) -> datetime:
    """Write the row of a new file and return its time, by which the writer recognises the row as its own."""
    created_at = current_time(session)
    row = {
        "kind": kind,
        "size": size,
        "created_at": created_at,
        "destroy_at": created_at + ADOPTION_GRACE,
        "destroyed_at": None,
    }
    statement = insert(session, Artifact).values(model_id=model_id, digest=digest, **row)
    # Sets every column, since a concurrent destruction of the same file may have changed the row.
    session.execute(statement.on_conflict_do_update(index_elements=["model_id", "digest"], set_=row))
    return created_at


def _require_in_time(
    database: Database,
    artifacts: ArtifactStore,
    may_write: Callable[[Session], bool],
    file: StoredFile,
    created_at: datetime,
) -> None:
    """Destroy a file that was stored after its batch or refresh was taken over, and raise LeaseLost.

    The batch that took over may have looked for leftovers before the file was there. It may also have stored the same
    bytes: then the row is its own, and so is the file.
    """
    with database.writing() as session:
        if may_write(session):
            return
        row = session.get_one(Artifact, (file.model_id, file.name), with_for_update=True)
        if row.created_at == created_at or row.destroyed_at is not None:
            destroy_file(session, artifacts, file, row, "lethe")
    raise LeaseLost("what the file is for was taken over; the file, stored too late, was destroyed")


def adopt(session: Session, model_id: uuid.UUID, digest: str) -> None:
    """Keep a file that `write_ahead` stored."""
    artifact = session.get_one(Artifact, (model_id, digest), with_for_update=True)
    if artifact.destroyed_at is not None:
        raise ArtifactsUnavailable(f"artifact {digest} took too long to store and was destroyed; try again")
    artifact.destroy_at = None


def destroy_due(database: Database, artifacts: ArtifactStore) -> int:
    """Destroy all due artifacts and return their number. Safe to run concurrently, and after a crash at any point.

    An artifact that cannot be destroyed is logged and stays due.
    """
    with database.reading() as session:
        due = [(a.model_id, a.digest) for a in session.scalars(_due(current_time(session)))]
    destroyed = 0
    for model_id, digest in due:
        try:
            destroyed += _destroy(database, artifacts, model_id, digest)
        except (OSError, ArtifactsUnavailable) as error:
            log.warning("artifact.not_destroyed", model_id=str(model_id), digest=digest, reason=type(error).__name__)
            if isinstance(error, ArtifactsUnavailable):
                break  # the others would only wait as long
    return destroyed


def _destroy(database: Database, artifacts: ArtifactStore, model_id: uuid.UUID, digest: str) -> bool:
    with database.writing() as session:
        query = _due(current_time(session)).where(Artifact.model_id == model_id, Artifact.digest == digest)
        row = session.scalar(query.with_for_update(skip_locked=True))
        if row is None:
            return False
        destroy_file(session, artifacts, StoredFile(model_id, digest), row, "sweep")
    return True


def destroy_file(
    session: Session, artifacts: ArtifactStore, file: StoredFile, row: Artifact | None, actor: str
) -> None:
    """Destroy a file, then update its row, if it has one, and write the audit entry.

    A crash in between leaves a row that is not yet destroyed, and the next run finishes it. The caller has locked the
    row, so that a process that stores the same bytes again waits and writes its file afterwards.
    """
    artifacts.destroy(file.model_id, file.name)
    if row is not None:
        row.destroyed_at = current_time(session)
    kind = row.kind if row is not None else ORPHAN
    action = "artifact.orphan_destroyed" if kind == ORPHAN else "artifact.destroyed"
    audit.record(session, actor, action, file.model_id, digest=file.name, kind=kind)


def _due(time: datetime) -> Select[Artifact]:
    """Select artifacts that are due and not used by a current version, since the same bytes may come back."""
    in_use = select(Version.id).where(
        Version.model_id == Artifact.model_id,
        Version.superseded_at.is_(None),
        or_(Version.posterior_digest == Artifact.digest, Version.dataset_digest == Artifact.digest),
    )
    return select(Artifact).where(Artifact.destroy_at <= time, Artifact.destroyed_at.is_(None), ~in_use.exists())
