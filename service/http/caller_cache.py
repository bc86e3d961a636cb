"""Who a token belongs to, remembered for a moment: a busy caller costs one query a second, not one a request."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from service.store.access.tokens import Caller, find_caller
from service.store.database import Database

MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class Remembered:
    caller: Caller
    until: float


class CallerCache:
    """Only valid tokens are remembered, by their hash. A revoked one is let in for `seconds` more at most."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._known: dict[bytes, Remembered] = {}

    async def find(self, secret: str) -> Caller | None:
        digest = hashlib.sha256(secret.encode()).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known.until:
            return known.caller
        asked_at = time.monotonic()
        caller = await run_in_threadpool(self._look_up, secret)
        self._known.pop(digest, None)
        if caller is not None and self._seconds:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = Remembered(caller, asked_at + self._seconds)
        return caller

    def _look_up(self, secret: str) -> Caller | None:
        with self._database.reading() as session:
            return find_caller(session, secret)
