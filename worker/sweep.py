"""The sweep: rings doorbells for waiting work, destroys due artifacts, writes daily summaries. Several may run at once.

The same process sends callbacks in a thread of its own, so that a slow receiver delays no worker and a long batch
delays no callback. The log's sequencer and publisher have threads too, so that entries are sequenced on time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from service.store.artifacts.leftovers import collect_leftovers
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.orphans import collect_orphans
from service.store.artifacts.store import ArtifactStore, destroy_due
from service.store.batches.doorbell import CHECK_TASK, REFRESH_TASK, Doorbell
from service.store.batches.due import models_to_ring
from service.store.database import Database
from service.store.deletions.summaries import write_daily_summary
from service.store.erasure_traces import TraceClearer
from service.store.errors import StoreError
from service.store.models.registry import versions_without_readiness
from service.store.refreshes.due import models_to_refresh
from worker.absences import run_absences
from worker.callbacks.sender import run_callbacks
from worker.checkpoints import run_publisher, run_sequencer

log = structlog.get_logger("sweep")

LEFTOVERS_SECONDS = 60.0
"""Interval at which files are listed of models whose batches ended unpublished within the last hour."""
ORPHANS_SECONDS = 3600.0
"""Interval at which the whole artifact store is listed in search of orphaned files: a bucket of a million files takes
a thousand requests."""
BACKGROUND_LOOPS = (run_absences, run_callbacks, run_sequencer, run_publisher)


def sweep_once(database: Database, artifacts: ArtifactStore, doorbell: Doorbell, refresh_below: float = 0.0) -> None:
    with database.reading() as session:
        waiting = models_to_ring(session)
        unchecked_models = [version.model_id for version in versions_without_readiness(session)]
        worn_models = models_to_refresh(session, refresh_below)
    for model_id in waiting:
        doorbell.ring(model_id)
    for model_id in unchecked_models:
        doorbell.ring(model_id, task=CHECK_TASK)
    for model_id in worn_models:
        doorbell.ring(model_id, task=REFRESH_TASK)
    destroyed = destroy_due(database, artifacts)
    if destroyed:
        log.info("artifacts.destroyed", count=destroyed)
    summary = write_daily_summary(database)
    if summary is not None:
        counts = {name: asdict(counted) for name, counted in summary.regulations.items()}
        log.info("summary.daily", day=summary.day.isoformat(), **counts)


def run_sweep(settings: Settings, stop: threading.Event) -> None:
    """Sweep until `stop` is set. An unavailable database is waited for."""
    database = Database(settings.database)
    doorbell = Doorbell(settings.broker, database)
    artifacts = open_artifacts(settings)
    threads = [threading.Thread(target=run, args=(settings, stop)) for run in BACKGROUND_LOOPS]
    for thread in threads:
        thread.start()
    traces = TraceClearer(database)
    leftovers_due = orphans_due = time.monotonic()
    while not stop.wait(settings.sweep_seconds):
        try:
            sweep_once(database, artifacts, doorbell, settings.refresh_below)
            traces.clear()
            if time.monotonic() >= leftovers_due:
                leftovers_due = time.monotonic() + LEFTOVERS_SECONDS
                _collect_leftovers(database, artifacts)
            if time.monotonic() >= orphans_due:
                orphans_due = time.monotonic() + ORPHANS_SECONDS
                _collect_orphans(database, artifacts)
        except (SQLAlchemyError, OSError, StoreError):
            log.exception("sweep.failed")
    for thread in threads:
        thread.join()
    doorbell.close()
    database.close()


def _collect_leftovers(database: Database, artifacts: ArtifactStore) -> None:
    count = collect_leftovers(database, artifacts)
    if count:
        log.warning("artifacts.leftovers", destroyed=count)


def _collect_orphans(database: Database, artifacts: ArtifactStore) -> None:
    if artifacts.keeps_versions():
        log.error("artifacts.versioned")  # destroyed files stay readable: docs/explanation/erasure.md
    counts = asdict(collect_orphans(database, artifacts))
    if any(counts.values()):
        log.warning("artifacts.orphans", **counts)
