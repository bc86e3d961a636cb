"""Rate limit per client address for requests without a valid token. Buckets are in this process's memory only."""

from __future__ import annotations

import time
from dataclasses import dataclass

from service.http.addresses import client_key

MAX_ADDRESSES = 10_000


@dataclass
class Bucket:
    level: float
    at: float


class AddressLimits:
    """A bucket of `burst` refusals per address that refills at `rate` per second."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, Bucket] = {}

    def delay(self, host: str) -> float:
        """Count a refused request. Return 0 if it is within the limit, else the seconds until the next one is."""
        now = time.monotonic()
        bucket = self._refill(client_key(host), now)
        if bucket.level >= 1:
            bucket.level -= 1
            return 0.0
        return (1 - bucket.level) / self._rate

    def _refill(self, key: str, now: float) -> Bucket:
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            bucket = Bucket(self._burst, now)
            if len(self._buckets) >= MAX_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]  # the one that has been silent longest
        bucket.level = min(self._burst, bucket.level + (now - bucket.at) * self._rate)
        bucket.at = now
        self._buckets[key] = bucket
        return bucket
