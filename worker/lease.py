"""A lease kept alive by a heartbeat, which also carries the progress to the database."""

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

from ml.ladder.variational import Step
from service.store.batches.lifecycle import Claim, heartbeat
from service.store.errors import LeaseLost
from worker.context import Workshop

log = structlog.get_logger("lease")
PROGRESS_SECONDS = 1.0


class Lease:
    """Use as a context manager around the computation. Losing it is noticed at the latest when publishing."""

    def __init__(self, workshop: Workshop, claim: Claim) -> None:
        self.device: str | None = None
        self._workshop = workshop
        self._claim = claim
        self._percent = 0.0
        self._phases = [("claimed", time.monotonic())]
        self._residuals: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{claim.batch_id}", daemon=True)

    def report(self, phase: str, fraction: float) -> None:
        """Remember how far the work is; the next beat writes it."""
        if phase != self._phases[-1][0]:
            self._phases.append((phase, time.monotonic()))
        self._percent = 100 * fraction

    def saw(self, step: Step) -> None:
        """Remember how near a step came."""
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
        self._tell()  # however it ended: a short job had no beat yet, and of a failed one this is what is known

    def _beat(self) -> None:
        while not self._stop.wait(min(PROGRESS_SECONDS, self._workshop.settings.lease_seconds / 3)):
            if not self._tell():
                return

    def _tell(self) -> bool:
        """False once the lease is lost. A database that is away is tried again at the next beat."""
        began = [*self._phases, ("", time.monotonic())]
        phases = [{"phase": phase, "seconds": end - start} for (phase, start), (_, end) in pairwise(began)]
        trace = {"phases": phases, "residuals": self._residuals[:]}
        seconds, told = self._workshop.settings.lease_seconds, (began[-2][0], self._percent, self.device, trace)
        try:
            with self._workshop.database.writing() as session:
                heartbeat(session, self._claim.batch_id, seconds, *told)
        except LeaseLost:
            return False
        except SQLAlchemyError as error:
            log.warning("heartbeat.missed", batch_id=str(self._claim.batch_id), reason=type(error).__name__)
        return True
