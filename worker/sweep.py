"""The sweep: rings again for work that nobody does, destroys what is due, sums days up. Any number may run at once.

Callbacks are sent beside it, in the same process: a slow receiver keeps no worker from forgetting, nor a long batch the
callbacks of others.
"""

from __future__ import annotations

import threading
from dataclasses import asdict

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from service.store.artifacts import ArtifactStore, destroy_due
from service.store.batches import models_to_ring
from service.store.database import Database
from service.store.doorbell import CHECK_TASK, Doorbell
from service.store.models import unchecked
from service.store.summaries import write_due
from worker.callbacks import run_callbacks

log = structlog.get_logger("sweep")


def sweep_once(database: Database, artifacts: ArtifactStore, doorbell: Doorbell) -> None:
    with database.reading() as session:
        waiting = models_to_ring(session)
        unlooked_at = [version.model_id for version in unchecked(session)]
    for model_id in waiting:
        doorbell.ring(model_id)
    for model_id in unlooked_at:
        doorbell.ring(model_id, task=CHECK_TASK)
    destroyed = destroy_due(database, artifacts)
    if destroyed:
        log.info("artifacts.destroyed", count=destroyed)
    summary = write_due(database)
    if summary is not None:
        counts = {name: asdict(counted) for name, counted in summary.regulations.items()}
        log.info("summary.daily", day=summary.day.isoformat(), **counts)


def run_sweep(settings: Settings, stop: threading.Event) -> None:
    """Sweep until `stop` is set. A database that is away is waited for."""
    database, doorbell = Database(settings.database), Doorbell(settings.broker)
    artifacts = ArtifactStore(settings.artifact_dir)
    sender = threading.Thread(target=run_callbacks, args=(settings, stop), name="callbacks")
    sender.start()
    while not stop.wait(settings.sweep_seconds):
        try:
            sweep_once(database, artifacts, doorbell)
        except (SQLAlchemyError, OSError):
            log.exception("sweep.failed")
    sender.join()
    doorbell.close()
    database.close()
