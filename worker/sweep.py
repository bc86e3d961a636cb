"""The sweep: rings again for work that nobody does, destroys what is due, sums days up. Any number may run at once.

Callbacks are sent beside it, in the same process: a slow receiver keeps no worker from forgetting, nor a long batch the
callbacks of others. The log is kept beside it too: its entries get their places in time whatever else there is to do.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.orphans import collect_orphans
from service.store.artifacts.store import ArtifactStore, destroy_due
from service.store.batches.doorbell import CHECK_TASK, Doorbell
from service.store.batches.due import models_to_ring
from service.store.database import Database
from service.store.deletions.summaries import write_due
from service.store.errors import StoreError
from service.store.models.registry import unchecked
from worker.callbacks.sender import run_callbacks
from worker.checkpoints import run_publisher, run_sequencer

log = structlog.get_logger("sweep")

ORPHANS_SECONDS = 3600.0
"""How often the whole store of artifacts is listed, in search of files that nobody knows."""
BESIDE = (run_callbacks, run_sequencer, run_publisher)


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
    database = Database(settings.database)
    doorbell = Doorbell(settings.broker, database)
    artifacts = open_artifacts(settings)
    beside = [threading.Thread(target=run, args=(settings, stop)) for run in BESIDE]
    for thread in beside:
        thread.start()
    orphans_due = time.monotonic()
    while not stop.wait(settings.sweep_seconds):
        try:
            sweep_once(database, artifacts, doorbell)
            if time.monotonic() >= orphans_due:
                orphans_due = time.monotonic() + ORPHANS_SECONDS
                _look_for_orphans(database, artifacts)
        except (SQLAlchemyError, OSError, StoreError):
            log.exception("sweep.failed")
    for thread in beside:
        thread.join()
    doorbell.close()
    database.close()


def _look_for_orphans(database: Database, artifacts: ArtifactStore) -> None:
    found = asdict(collect_orphans(database, artifacts))
    if any(found.values()):
        log.warning("artifacts.looked_through", **found)
