"""Doorbells rung after the answer, and not more often than they can do good."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from service.store.batches.doorbell import Doorbell


class Bells:
    """A doorbell wakes a worker when the batch window is over. Until then it stands for whatever else arrives."""

    def __init__(self, doorbell: Doorbell, window_seconds: float) -> None:
        self._doorbell = doorbell
        self._window_seconds = window_seconds
        self._rung_at: dict[uuid.UUID, float] = {}
        self._queued: set[uuid.UUID] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bells")

    def ring(self, model_ids: Iterable[uuid.UUID]) -> None:
        """Call it after the commit. Returns at once, whether the broker is there or not."""
        moment = time.monotonic()
        for model_id in model_ids:
            covered = moment < self._rung_at.get(model_id, -1.0) + self._window_seconds
            if model_id not in self._queued and not covered:
                self._rung_at[model_id] = moment
                self._queued.add(model_id)
                self._thread.submit(self._ring, model_id)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _ring(self, model_id: uuid.UUID) -> None:
        # From here on a further request is not sure to be seen by the worker whom this one wakes.
        self._queued.discard(model_id)
        self._doorbell.ring(model_id, self._window_seconds)
