"""A lease on a batch, renewed by a heartbeat that also writes the progress to the database."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from types import TracebackType
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from ml.ladder.climb import Step
from service.store.batches.lifecycle import Claim, renew_lease
from service.store.errors import LeaseLost
from worker.context import WorkerContext

log = structlog.get_logger("lease")
PROGRESS_SECONDS = 1.0


class Lease:
    """Context manager around the computation. A lost lease is noticed at the latest on publication."""

    def __init__(self, context: WorkerContext, claim: Claim) -> None:
        self.device: str | None = None
        self._context = context
        self._claim = claim
        self._percent = 0.0
        self._phases = [("claimed", time.monotonic())]
        self._residuals: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{claim.batch_id}", daemon=True)

    def report(self, phase: str, fraction: float) -> None:
        """Record the progress; the next heartbeat writes it."""
        if phase != self._phases[-1][0]:
            self._phases.append((phase, time.monotonic()))
        self._percent = 100 * fraction

    def record_step(self, step: Step) -> None:
        """Record the residual of a step."""
        residual = step.residual if math.isfinite(step.residual) else None  # JSON has no infinity
        self._residuals.append({**asdict(step), "residual": residual})

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._write_progress()  # a short job had no heartbeat yet, and for a failed one this is the only trace

    def _beat(self) -> None:
        while not self._stop.wait(min(PROGRESS_SECONDS, self._context.settings.lease_seconds / 3)):
            if not self._write_progress():
                return

    def _write_progress(self) -> bool:
        """Return False once the lease is lost. An unavailable database is retried at the next heartbeat."""
        starts = [*self._phases, ("", time.monotonic())]
        phases = [{"phase": phase, "seconds": end - start} for (phase, start), (_, end) in pairwise(starts)]
        trace = {"phases": phases, "residuals": self._residuals[:]}
        progress = (starts[-2][0], self._percent, self.device, trace)
        try:
            with self._context.database.writing() as session:
                renew_lease(session, self._claim.batch_id, self._context.settings.lease_seconds, *progress)
        except LeaseLost:
            return False
        except SQLAlchemyError as error:
            log.warning("heartbeat.missed", batch_id=str(self._claim.batch_id), reason=type(error).__name__)
        return True
