from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.batches.doorbell import Doorbell
from service.store.database import Database
from service.store.errors import Gone
from service.store.models.registry import current_version
from service.store.tables import Artifact, AuditEntry, now
from tests import samples
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.sweep import sweep_once


def test_superseded_posteriors_are_destroyed_on_schedule_and_logged(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """Erased rows are destroyed at once, the superseded posterior when its retention has passed."""
    retaining = replace(context, settings=settings.model_copy(update={"superseded_retention_seconds": 3600.0}))
    model_id, doorbell = samples.register_sample(settings, database), Doorbell(settings.broker, database)
    with database.reading() as session:
        old = current_version(session, model_id)
    samples.request_deletion(settings, database, 1)
    forget_pending(retaining, model_id)
    assert context.artifacts.get(model_id, old.posterior_digest)
    with pytest.raises(Gone):
        context.artifacts.get(model_id, old.dataset_digest)
    assert destroyed(database) == [old.dataset_digest]
    sweep_once(database, context.artifacts, doorbell)  # too early
    assert destroyed(database) == [old.dataset_digest]
    with database.writing() as session:
        artifact = session.get_one(Artifact, (model_id, old.posterior_digest))
        assert timedelta(minutes=59) < artifact.destroy_at - now() <= timedelta(hours=1)
        artifact.destroy_at = now()
    sweep_once(database, context.artifacts, doorbell)
    doorbell.close()
    assert destroyed(database) == [old.dataset_digest, old.posterior_digest]
    with pytest.raises(Gone):
        context.artifacts.get(model_id, old.posterior_digest)


def destroyed(database: Database) -> list[str]:
    with database.reading() as session:
        entries = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "artifact.destroyed").order_by(AuditEntry.id)
        ).all()
    return [entry.details["digest"] for entry in entries]
