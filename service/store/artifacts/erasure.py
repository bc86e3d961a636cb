"""What a publication erases: every file of the model that holds the forgotten records or their influence."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.clock import current_time
from service.store.tables import Artifact, Version
from vocabulary.certificate import DestroyedFile, ErasureFacts, ScheduledFile


def schedule_erasure(
    session: Session, before: Version, retained: Collection[str], posterior_until: datetime
) -> ErasureFacts:
    """Schedule the destruction of all files of the model except `retained`, and return what a certificate says.

    Posteriors of versions are destroyed at `posterior_until` or as scheduled earlier, all other files at once.
    """
    files = _existing_files(session, before.model_id, retained)
    posteriors = _posteriors_among(session, before.model_id, [file.digest for file in files])
    timestamp = current_time(session)
    for file in files:
        limit = posterior_until if file.digest in posteriors else timestamp
        file.destroy_at = min(file.destroy_at or limit, limit)
    destroyed = session.scalars(
        select(Artifact).where(Artifact.model_id == before.model_id, Artifact.destroyed_at >= before.created_at)
    )
    return ErasureFacts(
        destroyed=[DestroyedFile(digest=file.digest, kind=file.kind) for file in _sorted(destroyed)],
        scheduled=[ScheduledFile(at=file.destroy_at, digest=file.digest, kind=file.kind) for file in _sorted(files)],
    )


def _existing_files(session: Session, model_id: uuid.UUID, retained: Collection[str]) -> list[Artifact]:
    files = session.scalars(
        select(Artifact).where(Artifact.model_id == model_id, Artifact.destroyed_at.is_(None)).with_for_update()
    )
    return [file for file in files if file.digest not in retained]


def _posteriors_among(session: Session, model_id: uuid.UUID, digests: Collection[str]) -> set[str]:
    query = select(Version.posterior_digest).where(Version.model_id == model_id, Version.posterior_digest.in_(digests))
    return set(session.scalars(query))


def _sorted(files: Iterable[Artifact]) -> list[Artifact]:
    return sorted(files, key=lambda file: file.digest)
