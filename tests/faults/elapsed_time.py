"""Effects of elapsed time, without waiting: leases expire, and the next sweep comes."""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import update

from service.settings import Settings
from service.store.artifacts.store import destroy_due
from service.store.database import Database
from service.store.tables import Batch, DeletionTarget, now
from tests.faults.artifact_stores import artifact_store


def expire_lease(database: Database, model_id: uuid.UUID) -> None:
    """Expire the lease of a model, and the delay before its next attempts."""
    past = now() - timedelta(seconds=1)
    with database.writing() as session:
        session.execute(update(Batch).where(Batch.model_id == model_id).values(lease_expires_at=past))
        session.execute(update(DeletionTarget).where(DeletionTarget.model_id == model_id).values(not_before=past))


def sweep_files(settings: Settings, database: Database) -> None:
    """Do what the next sweep does with files, about a second later. Leftovers are the workers' own to destroy."""
    destroy_due(database, artifact_store(settings))
