"""Rate limits per token: a bucket of `burst` requests that refills at `rate` per second, shared by all API processes.

The buckets are in Redis under the token's id. A process takes several requests at a time from a bucket and spends them
locally, so that most requests need no message to Redis. If Redis is unavailable, all requests pass: intake works
without it.
"""

from __future__ import annotations

import asyncio
import time
import uuid

import structlog
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

log = structlog.get_logger("rate_limits")
TIMEOUT_SECONDS = 1.0
"""A broker that takes longer counts as unavailable. Not shorter, since this process may itself be busy."""
UNAVAILABLE_SECONDS = 5.0
"""Time until an unavailable broker is asked again."""
SHARE_SECONDS = 1.0
"""Requests that a process took and did not spend in this time are lost."""
MAX_TOKENS = 10_000
# With `debt`, all that is wanted is taken, and the level may become negative: later requests wait for it.
TAKE = """
local rate, burst, wanted, debt = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local moment = tonumber(time[1]) + tonumber(time[2]) / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'level', 'moment')
local level = tonumber(bucket[1]) or burst
level = math.min(burst, level + math.max(0, moment - (tonumber(bucket[2]) or moment)) * rate)
local taken = wanted
if debt == 0 then taken = math.max(0, math.min(wanted, math.floor(level))) end
level = level - taken
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'moment', string.format('%.6f', moment))
redis.call('EXPIRE', KEYS[1], math.ceil((burst - level) / rate) + 1)
return {taken, math.ceil((1 - level) / rate * 1000)}
"""


class Share:
    """Requests of one token's bucket that this process may still spend, or until when the bucket is empty."""

    def __init__(self) -> None:
        self.left = 0
        self.left_until = 0.0
        self.empty_until = 0.0
        self.lock = asyncio.Lock()

    def spend(self, now: float) -> bool:
        if self.left > 0 and now < self.left_until:
            self.left -= 1
            return True
        return False


class RateLimits:
    def __init__(self, broker: str, rate: float, burst: int) -> None:
        self._redis = _connect(broker)
        self._take = self._redis.register_script(TAKE)
        self._rate, self._burst = rate, burst
        # Small compared with both, so that lost parts of a share do not matter.
        self._share_size = max(1, min(burst // 50, int(rate / 10)))
        self._shares: dict[uuid.UUID, Share] = {}
        self._unavailable_until = 0.0

    async def delay(self, token_id: uuid.UUID) -> float:
        """Return 0 if the request may pass, else the seconds until the next one may."""
        share = self._share(token_id)
        if share.spend(time.monotonic()):
            return 0.0
        async with share.lock:  # those who waited spend what the first of them has fetched
            if share.spend(time.monotonic()) or not await self._fetch(token_id, share):
                return 0.0
            if share.spend(time.monotonic()):
                return 0.0
            return max(share.empty_until - time.monotonic(), 0.001)

    async def charge(self, token_id: uuid.UUID, requests: int) -> None:
        """Take further requests that a request contains, if need be in advance: later ones wait for them."""
        share = self._share(token_id)
        async with share.lock:
            spent_locally = min(share.left, requests) if time.monotonic() < share.left_until else 0
            share.left -= spent_locally
            answer = await self._ask(token_id, requests - spent_locally, debt=True)
            if answer is not None and answer[1] > 0:
                share.empty_until = time.monotonic() + answer[1] / 1000

    async def close(self) -> None:
        await self._redis.aclose()

    def _share(self, token_id: uuid.UUID) -> Share:
        if len(self._shares) >= MAX_TOKENS:
            self._shares.clear()
        return self._shares.setdefault(token_id, Share())

    async def _fetch(self, token_id: uuid.UUID, share: Share) -> bool:
        """Refill the share, unless its bucket is still empty. False if the broker is unavailable."""
        if time.monotonic() < share.empty_until:
            return True
        answer = await self._ask(token_id, self._share_size, debt=False)
        if answer is None:
            return False
        taken, milliseconds = answer
        now = time.monotonic()
        share.left, share.left_until = taken, now + SHARE_SECONDS
        share.empty_until = 0.0 if taken else now + milliseconds / 1000
        return True

    async def _ask(self, token_id: uuid.UUID, wanted: int, *, debt: bool) -> tuple[int, int] | None:
        """Return the requests taken and the milliseconds until there is one more. None if the broker is unavailable."""
        if time.monotonic() < self._unavailable_until:
            return None
        try:
            taken, milliseconds = await self._take(
                keys=[f"lethe:rate:{token_id}"], args=[self._rate, self._burst, wanted, int(debt)]
            )
        except (RedisError, OSError) as error:
            log.warning("rate_limits.unavailable", reason=type(error).__name__)
            self._unavailable_until = time.monotonic() + UNAVAILABLE_SECONDS
            return None
        return taken, milliseconds


def _connect(broker: str) -> Redis:
    return Redis.from_url(
        broker.replace("redis+socket://", "unix://", 1),
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
