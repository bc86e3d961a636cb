"""Graceful shutdown of a worker: a batch that ends soon is finished, any other is released to other workers.

Celery's soft shutdown sleeps for its whole timeout in the signal handler, even if the batch ends at once. So SIGTERM
keeps starting the warm shutdown, which waits without limit, and a timer turns that into the cold one.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import structlog
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from service.store.batches.doorbell import Doorbell
from service.store.batches.release import release_batches
from service.store.database import Database
from service.store.refreshes.lifecycle import release_refreshes

log = structlog.get_logger("worker")


class GracefulShutdown:
    """Shutdown of the process that receives SIGTERM. Its children, which compute, share its `name` in claims."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._timer: threading.Timer | None = None

    def connect(self) -> None:
        signals.worker_shutting_down.connect(self._start_timer, weak=False)
        signals.worker_shutdown.connect(self._release_batches, weak=False)

    def _start_timer(self, **_: Any) -> None:
        if self._timer is None:
            # SIGQUIT is Celery's cold shutdown: it ends the children and requeues their messages.
            self._timer = threading.Timer(self._settings.shutdown_seconds, os.kill, (os.getpid(), signal.SIGQUIT))
            self._timer.daemon = True
            self._timer.start()

    def _release_batches(self, **_: Any) -> None:
        """Release the batches that are still claimed under our name: nobody works on them any more."""
        if self._timer is not None:
            self._timer.cancel()
        database = Database(self._settings.database)
        doorbell = Doorbell(self._settings.broker, database)
        try:
            with database.writing() as session:
                waiting = release_batches(session, self._name)
                release_refreshes(session, self._name)  # the sweep rings for them once no deletion waits
            for model_id in waiting:
                log.info("batch.given_back", model_id=str(model_id))
                doorbell.ring(model_id)
        except SQLAlchemyError as error:
            # The lease expires by itself.
            log.warning("batch.not_released", reason=type(error).__name__)
        finally:
            doorbell.close()
            database.close()
