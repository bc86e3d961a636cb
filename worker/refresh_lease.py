"""A lease on a refresh, renewed by a heartbeat that also asks whether the refresh has to give way to a deletion."""

from __future__ import annotations

import threading
from types import TracebackType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store.batches.lifecycle import DELETIONS_FIRST
from service.store.errors import LeaseLost
from service.store.refreshes.lifecycle import (
    RefreshClaim,
    abandon_held,
    has_own_deletions,
    has_unserved_deletions,
    release_refresh,
    renew_refresh,
)
from worker.context import WorkerContext

log = structlog.get_logger("lease")
BEAT_SECONDS = 1.0


class GaveWay(Exception):
    """The worker no longer holds the refresh: it gave way to a deletion, or was replaced by another worker."""


class RefreshLease:
    """Context manager around the computation."""

    def __init__(self, context: WorkerContext, claim: RefreshClaim) -> None:
        self._context = context
        self._claim = claim
        self._phase, self._percent = "loading", 0.0
        self._lost, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"refresh-{claim.refresh_id}", daemon=True)

    def report(self, phase: str, fraction: float) -> None:
        """Record the progress; the next heartbeat writes it. Raise GaveWay once the refresh is not held any more."""
        self._phase, self._percent = phase, 100 * fraction
        if self._lost.is_set():
            raise GaveWay

    def __enter__(self) -> RefreshLease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(min(BEAT_SECONDS, self._context.settings.lease_seconds / 3)):
            try:
                if not self._renew_or_give_way():
                    self._lost.set()
                    return
            except SQLAlchemyError as error:
                log.warning("heartbeat.missed", refresh_id=str(self._claim.refresh_id), reason=type(error).__name__)

    def _renew_or_give_way(self) -> bool:
        """Return False once the refresh is lost, ended or released. An unavailable database is retried."""
        claim = self._claim
        try:
            # In a transaction of its own: most heartbeats find nothing, and a write would block other writers.
            with self._context.database.reading() as session:
                comes_second = has_own_deletions(session, claim)
                is_needed = comes_second or has_unserved_deletions(session, claim)
            with self._context.database.writing() as session:
                if comes_second:
                    abandon_held(session, claim, DELETIONS_FIRST)
                elif is_needed:
                    release_refresh(session, claim)
                else:
                    renew_refresh(session, claim, self._context.settings.lease_seconds, self._phase, self._percent)
        except LeaseLost:
            return False
        return not is_needed
