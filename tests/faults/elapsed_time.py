"""Effects of elapsed time, without waiting: leases expire, and orphaned files become old enough to collect."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import update

from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.orphans import collect_orphans
from service.store.artifacts.store import destroy_due
from service.store.database import Database
from service.store.tables import Artifact, Batch, DeletionTarget, now

LONG_AGO = timedelta(hours=2)


def expire_lease(database: Database, model_id: uuid.UUID) -> None:
    """Expire the lease of a model, and the delay before its next attempts."""
    past = now() - timedelta(seconds=1)
    with database.writing() as session:
        session.execute(update(Batch).where(Batch.model_id == model_id).values(lease_expires_at=past))
        session.execute(update(DeletionTarget).where(DeletionTarget.model_id == model_id).values(not_before=past))


def collect_garbage(settings: Settings, database: Database, model_ids: Collection[uuid.UUID]) -> None:
    """Do what the sweeps of the next hours would do with the files of these models."""
    past = now() - LONG_AGO
    with database.writing() as session:
        scheduled = (Artifact.destroy_at.is_not(None), Artifact.model_id.in_(model_ids))
        session.execute(update(Artifact).where(*scheduled).values(destroy_at=past))
    for model_id in model_ids:
        for path in (settings.artifact_dir / str(model_id)).iterdir():
            os.utime(path, (past.timestamp(), past.timestamp()))
    artifacts = ArtifactFolder(settings.artifact_dir)
    collect_orphans(database, artifacts)
    destroy_due(database, artifacts)
