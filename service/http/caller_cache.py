"""Cache of tokens and their callers: a busy caller costs one query per second, not one per request."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from service.store.access.tokens import Caller, find_caller
from service.store.database import Database
from service.store.tables import now

MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class CacheEntry:
    caller: Caller
    until: float


class CallerCache:
    """Holds valid tokens only, by their hash, no longer than they are valid.

    A revoked token is accepted for at most `seconds` longer.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._entries: dict[bytes, CacheEntry] = {}

    async def find(self, secret: str) -> Caller | None:
        digest = hashlib.sha256(secret.encode()).digest()
        entry = self._entries.get(digest)
        if entry is not None and time.monotonic() < entry.until:
            return entry.caller
        queried_at = time.monotonic()
        caller = await run_in_threadpool(self._look_up, secret)
        self._entries.pop(digest, None)
        if caller is not None and self._seconds:
            if len(self._entries) >= MAX_ENTRIES:
                self._entries.clear()
            self._entries[digest] = CacheEntry(caller, queried_at + min(self._seconds, _seconds_left(caller)))
        return caller

    def _look_up(self, secret: str) -> Caller | None:
        with self._database.reading() as session:
            return find_caller(session, secret)


def _seconds_left(caller: Caller) -> float:
    return math.inf if caller.expires_at is None else (caller.expires_at - now()).total_seconds()
