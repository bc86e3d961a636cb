"""Files under their own SHA-256, one folder for each model: written whole or not at all, checked on every read."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.database import Database
from service.store.datasets.tensor_files import Piece
from service.store.dialect import insert
from service.store.errors import ArtifactDamaged, ArtifactsAway
from service.store.tables import Artifact, Version, now

log = structlog.get_logger("artifacts")

ADOPTION_GRACE = timedelta(hours=1)
ORPHAN = "orphan"
"""The kind of a file of which nobody knows what it was."""
_UUID, _DIGEST = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"[0-9a-f]{64}"
_OURS = re.compile(rf"(?P<model>{_UUID})/(?P<name>{_DIGEST}|\.{_DIGEST}\.[0-9a-f]{{32}})")


@dataclass(frozen=True)
class StoredFile:
    """A file as a store lists it: an artifact under its digest, or a draft of one."""

    model_id: uuid.UUID
    name: str

    @property
    def is_draft(self) -> bool:
        return self.name.startswith(".")

    @classmethod
    def named(cls, key: str) -> StoredFile | None:
        """None unless the name is one that we give: whatever else lies there is somebody else's."""
        ours = _OURS.fullmatch(key)
        return cls(uuid.UUID(ours["model"]), ours["name"]) if ours else None


class ArtifactStore(Protocol):
    """Immutable files. Knows bytes and digests, not what they mean."""

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        """Store a file, made of `pieces`, durably and return its digest. Storing it again changes nothing."""

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        """The whole file, checked against its digest."""

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        """Whoever returns from here has seen to it that the file is gone. Destroying it again changes nothing."""

    def files(self) -> Iterator[StoredFile]:
        """All that is there under a name of ours."""

    def modified_at(self, file: StoredFile) -> datetime | None:
        """When it was written last; None if it is gone."""


def digest_of(pieces: Iterable[Piece]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def draft_name(digest: str) -> str:
    return f".{digest}.{uuid.uuid4().hex}"


def checked(content: bytes, digest: str) -> bytes:
    if digest_of([content]) != digest:
        raise ArtifactDamaged(f"artifact {digest} does not have the content it is named after; restore it")
    return content


def write_ahead(database: Database, artifacts: ArtifactStore, model_id: uuid.UUID, kind: str, *pieces: Piece) -> str:
    """Store a file that a later transaction is going to `adopt`.

    The row comes first and says "destroy soon": a crash before the adoption leaves nothing that is never erased.
    """
    digest, moment = digest_of(pieces), now()
    row = {
        "kind": kind,
        "size": sum(map(len, pieces)),
        "created_at": moment,
        "destroy_at": moment + ADOPTION_GRACE,
        "destroyed_at": None,
    }
    with database.writing() as session:
        new = insert(session, Artifact).values(model_id=model_id, digest=digest, **row)
        # Every column, whatever was read of the row before: who destroys the same file at this moment changes it first.
        session.execute(new.on_conflict_do_update(index_elements=["model_id", "digest"], set_=row))
    return artifacts.put(model_id, *pieces)


def adopt(session: Session, model_id: uuid.UUID, digest: str) -> None:
    artifact = session.get_one(Artifact, (model_id, digest), with_for_update=True)
    if artifact.destroyed_at is not None:
        raise ArtifactsAway(f"artifact {digest} took so long to store that it was destroyed as unwanted; try again")
    artifact.destroy_at = None


def schedule_destruction(session: Session, model_id: uuid.UUID, digest: str, moment: datetime) -> None:
    session.get_one(Artifact, (model_id, digest)).destroy_at = moment


def destroy_due(database: Database, artifacts: ArtifactStore) -> int:
    """Destroy what is scheduled and due, and log each. Safe to run twice at once, and after a crash at any point.

    What cannot be destroyed now is said, and stays due.
    """
    with database.reading() as session:
        due = [(a.model_id, a.digest) for a in session.scalars(_due(now()))]
    destroyed = 0
    for model_id, digest in due:
        try:
            destroyed += _destroy(database, artifacts, model_id, digest)
        except (OSError, ArtifactsAway) as error:
            log.warning("artifact.not_destroyed", model_id=str(model_id), digest=digest, reason=type(error).__name__)
            if isinstance(error, ArtifactsAway):
                break  # the next one would only wait as long
    return destroyed


def _destroy(database: Database, artifacts: ArtifactStore, model_id: uuid.UUID, digest: str) -> bool:
    """The row is locked meanwhile: who stores the same bytes again waits, and their file comes after, not before.

    File first: a crash in between leaves a row that says "not yet destroyed", and the next run finishes it.
    """
    this = Artifact.model_id == model_id, Artifact.digest == digest
    with database.writing() as session:
        artifact = session.scalar(_due(now()).where(*this).with_for_update(skip_locked=True))
        if artifact is None:
            return False
        artifacts.destroy(model_id, digest)
        artifact.destroyed_at = now()
        action = "artifact.orphan_destroyed" if artifact.kind == ORPHAN else "artifact.destroyed"
        audit.record(session, "sweep", action, model_id, digest=digest, kind=artifact.kind)
    return True


def _due(moment: datetime) -> Select[Artifact]:
    """Scheduled, due, and not what a current version stands on (the same bytes may come back)."""
    in_use = select(Version.id).where(
        Version.model_id == Artifact.model_id,
        Version.superseded_at.is_(None),
        or_(Version.posterior_digest == Artifact.digest, Version.dataset_digest == Artifact.digest),
    )
    return select(Artifact).where(Artifact.destroy_at <= moment, Artifact.destroyed_at.is_(None), ~in_use.exists())
