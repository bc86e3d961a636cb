"""Files under their own SHA-256, one folder for each model: written whole or not at all, checked on every read."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.database import Database
from service.store.errors import ArtifactDamaged, Gone
from service.store.tables import Artifact, Version, now
from service.store.tensor_files import Piece

ADOPTION_GRACE = timedelta(hours=1)


class ArtifactStore:
    """A folder of immutable files. Knows bytes and digests, not what they mean."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        """Store a file, made of `pieces`, durably and return its digest. Storing it again changes nothing."""
        digest = digest_of(pieces)
        path = self.path(model_id, digest)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{digest}.{uuid.uuid4().hex}")
        try:
            with draft.open("wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return digest

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        try:
            content = self.path(model_id, digest).read_bytes()
        except FileNotFoundError:
            raise Gone(f"artifact {digest} was destroyed; ask for the current version") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise ArtifactDamaged(f"artifact {digest} does not have the content it is named after; restore it")
        return content

    def destroy(self, model_id: uuid.UUID, digest: str) -> None:
        self.path(model_id, digest).unlink(missing_ok=True)
        if self.path(model_id, digest).parent.exists():
            _sync_folder(self.path(model_id, digest).parent)

    def path(self, model_id: uuid.UUID, digest: str) -> Path:
        return self._root / str(model_id) / digest


def digest_of(pieces: Iterable[Piece]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def write_ahead(database: Database, artifacts: ArtifactStore, model_id: uuid.UUID, kind: str, *pieces: Piece) -> str:
    """Store a file that a later transaction is going to `adopt`.

    The row comes first and says "destroy soon": a crash before the adoption leaves nothing that is never erased.
    """
    digest = digest_of(pieces)
    with database.writing() as session:
        session.merge(
            Artifact(
                model_id=model_id,
                digest=digest,
                kind=kind,
                size=sum(map(len, pieces)),
                created_at=now(),
                destroy_at=now() + ADOPTION_GRACE,
                destroyed_at=None,
            )
        )
    return artifacts.put(model_id, *pieces)


def adopt(session: Session, model_id: uuid.UUID, digest: str) -> None:
    session.get_one(Artifact, (model_id, digest)).destroy_at = None


def schedule_destruction(session: Session, model_id: uuid.UUID, digest: str, moment: datetime) -> None:
    session.get_one(Artifact, (model_id, digest)).destroy_at = moment


def destroy_due(database: Database, artifacts: ArtifactStore) -> int:
    """Destroy what is scheduled and due, and log each. Safe to run twice at once, and after a crash at any point."""
    with database.reading() as session:
        due = [(a.model_id, a.digest) for a in session.scalars(_due(now()))]
    for model_id, digest in due:
        # File first: a crash in between leaves a row that says "not yet destroyed", and the next run finishes it.
        artifacts.destroy(model_id, digest)
        with database.writing() as session:
            _log_destruction(session, model_id, digest)
    return len(due)


def _due(moment: datetime) -> Select[Artifact]:
    """Scheduled, due, and not what a current version stands on (the same bytes may come back)."""
    in_use = select(Version.id).where(
        Version.model_id == Artifact.model_id,
        Version.superseded_at.is_(None),
        or_(Version.posterior_digest == Artifact.digest, Version.dataset_digest == Artifact.digest),
    )
    return select(Artifact).where(Artifact.destroy_at <= moment, Artifact.destroyed_at.is_(None), ~in_use.exists())


def _log_destruction(session: Session, model_id: uuid.UUID, digest: str) -> None:
    artifact = session.get(Artifact, (model_id, digest))
    if artifact and artifact.destroyed_at is None:
        artifact.destroyed_at = now()
        audit.record(session, "sweep", "artifact.destroyed", model_id, digest=digest, kind=artifact.kind)


def _sync_folder(folder: Path) -> None:
    """A rename or unlink is durable once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
