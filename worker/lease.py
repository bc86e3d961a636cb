"""A lease kept alive by a heartbeat, which also carries the progress to the database."""

from __future__ import annotations

import threading
from types import TracebackType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store.batches import Claim, heartbeat
from service.store.errors import LeaseLost
from worker.workshop import Workshop

log = structlog.get_logger("lease")
PROGRESS_SECONDS = 1.0


class Lease:
    """Use as a context manager around the computation. Losing it is noticed at the latest when publishing."""

    def __init__(self, workshop: Workshop, claim: Claim) -> None:
        self._workshop = workshop
        self._claim = claim
        self._progress = ("claimed", 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{claim.batch_id}", daemon=True)

    def report(self, phase: str, fraction: float) -> None:
        """Remember how far the work is; the next beat writes it."""
        self._progress = (phase, 100 * fraction)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        lease_seconds = self._workshop.settings.lease_seconds
        while not self._stop.wait(min(PROGRESS_SECONDS, lease_seconds / 3)):
            phase, percent = self._progress
            try:
                with self._workshop.database.writing() as session:
                    heartbeat(session, self._claim.batch_id, lease_seconds, phase, percent)
            except LeaseLost:
                return
            except SQLAlchemyError as error:
                log.warning("heartbeat.missed", batch_id=str(self._claim.batch_id), reason=type(error).__name__)
