"""How a worker leaves: with a batch that ends soon finished, and one that does not given back to the others.

Celery's own soft shutdown sleeps through all of its time in the signal handler, even when the batch ended at once. So
SIGTERM keeps its ordinary meaning, which waits for ever, and a timer turns it into the other one.
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
from service.store.batches.release import give_back
from service.store.database import Database

log = structlog.get_logger("worker")


class Leaving:
    """Of the process that gets the signal; the ones that compute are its children and work under `name` too."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._patience: threading.Timer | None = None

    def connect(self) -> None:
        signals.worker_shutting_down.connect(self._told_to_stop, weak=False)
        signals.worker_shutdown.connect(self._stopped, weak=False)

    def _told_to_stop(self, **_: Any) -> None:
        if self._patience is None:
            # Celery's cold shutdown: ends the children and puts their messages back.
            self._patience = threading.Timer(self._settings.shutdown_seconds, os.kill, (os.getpid(), signal.SIGQUIT))
            self._patience.daemon = True
            self._patience.start()

    def _stopped(self, **_: Any) -> None:
        """Whatever still stands under our name is nobody's work any more."""
        if self._patience is not None:
            self._patience.cancel()
        database = Database(self._settings.database)
        doorbell = Doorbell(self._settings.broker, database)
        try:
            with database.writing() as session:
                waiting = give_back(session, self._name)
            for model_id in waiting:
                log.info("batch.given_back", model_id=str(model_id))
                doorbell.ring(model_id)
        except SQLAlchemyError as error:
            # The lease runs out by itself.
            log.warning("batch.kept", reason=type(error).__name__)
        finally:
            doorbell.close()
            database.close()
