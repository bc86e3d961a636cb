"""Rate limits per token: a bucket of `burst` requests that refills at `rate` per second, shared by all API processes.

The buckets are in Redis. A process takes several requests at a time from a bucket and spends them locally, so that most
requests need no message to Redis. If Redis is unavailable, all requests pass: intake works without it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import structlog
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.errors import TooManyRequests
from service.http.middleware import RenderError

log = structlog.get_logger("rate_limits")
TIMEOUT_SECONDS = 1.0
"""A broker that takes longer counts as unavailable. Not shorter, since this process may itself be busy."""
UNAVAILABLE_SECONDS = 5.0
"""Time until an unavailable broker is asked again."""
SHARE_SECONDS = 1.0
"""Requests that a process took and did not spend in this time are lost."""
MAX_TOKENS = 10_000
TAKE = """
local rate, burst, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local moment = tonumber(time[1]) + tonumber(time[2]) / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'level', 'moment')
local level = tonumber(bucket[1]) or burst
level = math.min(burst, level + math.max(0, moment - (tonumber(bucket[2]) or moment)) * rate)
local taken = math.min(wanted, math.floor(level))
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
    def __init__(self, broker: str, rate: float, burst: int, mac: Callable[[bytes], bytes]) -> None:
        self._redis = _connect(broker)
        self._take = self._redis.register_script(TAKE)
        self._rate, self._burst, self._mac = rate, burst, mac
        # Small compared with both, so that lost parts of a share do not matter.
        self._share_size = max(1, min(burst // 50, int(rate / 10)))
        self._shares: dict[str, Share] = {}
        self._unavailable_until = 0.0

    async def delay(self, token: str) -> float:
        """Return 0 if the request may pass, else the seconds until the next one may."""
        # Keyed, because a caller may send anything as a token: the plain hash of an e-mail address can be guessed.
        name = self._mac(f"token\0{token}".encode()).hex()
        share = self._share(name)
        if share.spend(time.monotonic()):
            return 0.0
        async with share.lock:  # those who waited spend what the first of them has fetched
            if share.spend(time.monotonic()) or not await self._fetch(name, share):
                return 0.0
            if share.spend(time.monotonic()):
                return 0.0
            return max(share.empty_until - time.monotonic(), 0.001)

    async def close(self) -> None:
        await self._redis.aclose()

    def _share(self, name: str) -> Share:
        if len(self._shares) >= MAX_TOKENS:
            self._shares.clear()
        return self._shares.setdefault(name, Share())

    async def _fetch(self, name: str, share: Share) -> bool:
        """Refill the share, unless its bucket is still empty. False if the broker is unavailable."""
        if time.monotonic() < self._unavailable_until:
            return False
        if time.monotonic() < share.empty_until:
            return True
        try:
            taken, milliseconds = await self._take(
                keys=[f"lethe:rate:{name}"], args=[self._rate, self._burst, self._share_size]
            )
        except (RedisError, OSError) as error:
            log.warning("rate_limits.unavailable", reason=type(error).__name__)
            self._unavailable_until = time.monotonic() + UNAVAILABLE_SECONDS
            return False
        now = time.monotonic()
        share.left, share.left_until = taken, now + SHARE_SECONDS
        share.empty_until = 0.0 if taken else now + milliseconds / 1000
        return True


class RateLimit:
    """Refuses requests over the rate limit of their token, before the body is read."""

    def __init__(self, app: ASGIApp, limits: RateLimits, render_error: RenderError) -> None:
        self._app = app
        self._limits = limits
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (seconds := await self._limits.delay(token)):
            response = self._render_error(Request(scope), TooManyRequests(math.ceil(seconds)))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _connect(broker: str) -> Redis:
    return Redis.from_url(
        broker.replace("redis+socket://", "unix://", 1),
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
