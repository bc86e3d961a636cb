"""Ringing of doorbells after the commit: off the request's path, and no more often than useful."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple

from service.store.batches.doorbell import FORGET_TASK, Doorbell
from service.store.deletions.creation import NewWork


class Ring(NamedTuple):
    model_id: uuid.UUID
    delay_seconds: float
    task: str


class Ringer:
    """Rings doorbells in a thread of its own."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._rung_for: dict[uuid.UUID, datetime] = {}
        """When the work is due for which a model was rung with a delay."""
        self._queued: set[Ring] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringer")

    def ring(self, model_ids: Iterable[uuid.UUID], delay_seconds: float = 0.0, task: str = FORGET_TASK) -> None:
        """Wake a worker for each model after the delay. Call it after the commit; it returns at once."""
        for model_id in model_ids:
            ring = Ring(model_id, delay_seconds, task)
            if ring not in self._queued:
                self._queued.add(ring)
                self._thread.submit(self._send, ring)

    def ring_when_due(self, work: NewWork) -> None:
        """Wake a worker for each model when its work is due. One ring stands for all work that is due at that time."""
        if not work.wait_seconds:
            self.ring(work.model_ids)
            return
        model_ids = [model_id for model_id in work.model_ids if self._rung_for.get(model_id) != work.due_at]
        self._rung_for.update(dict.fromkeys(model_ids, work.due_at))
        self.ring(model_ids, work.wait_seconds)

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
