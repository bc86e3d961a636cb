"""Ringing of doorbells after the commit: off the request's path, and no more often than useful."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from service.store.batches.doorbell import FORGET_TASK, Doorbell


class Ring(NamedTuple):
    model_id: uuid.UUID
    delay_seconds: float
    task: str


class Ringer:
    """Rings doorbells in a thread of its own."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._rung_at: dict[Ring, float] = {}
        self._queued: set[Ring] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringer")

    def ring(self, model_ids: Iterable[uuid.UUID], delay_seconds: float = 0.0, task: str = FORGET_TASK) -> None:
        """Wake a worker for each model after the delay. Call it after the commit; it returns at once.

        Until the delay is over, one ring stands for all work that arrives for the model: nothing is rung twice.
        """
        now = time.monotonic()
        for model_id in model_ids:
            ring = Ring(model_id, delay_seconds, task)
            is_covered = now < self._rung_at.get(ring, -1.0) + delay_seconds
            if ring not in self._queued and not is_covered:
                if delay_seconds:
                    self._rung_at[ring] = now
                self._queued.add(ring)
                self._thread.submit(self._send, ring)

    def ping(self) -> None:
        """Raise unless the broker answers."""
        self._doorbell.ping()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._doorbell.close()

    def _send(self, ring: Ring) -> None:
        # From now on, the worker that this ring wakes may miss work that is committed later.
        self._queued.discard(ring)
        self._doorbell.ring(ring.model_id, ring.delay_seconds, ring.task)
