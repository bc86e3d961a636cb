"""How much a token may ask: a bucket of `burst` requests that fills at `rate` a second, shared by all API processes.

The buckets are in Redis. A process takes a few requests at a time out of one and spends them without asking again, so
that a busy caller costs one message in many. When the broker is away everybody may pass: intake goes on without it.
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
from service.http.middleware import Refuse

log = structlog.get_logger("rate_limits")
ANSWER_SECONDS = 1.0
"""A broker that takes longer is away. Not less: a busy moment of ours must not look like that."""
AWAY_SECONDS = 5.0
"""For how long nobody asks it again."""
SHARE_SECONDS = 1.0
"""What a process took and did not spend in this time is lost."""
MOST_TOKENS = 10_000
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
    """What this process may still spend of one token's bucket, or until when the bucket is known to be empty."""

    def __init__(self) -> None:
        self.left = 0
        self.left_until = 0.0
        self.empty_until = 0.0
        self.asking = asyncio.Lock()

    def spend(self, moment: float) -> bool:
        if self.left > 0 and moment < self.left_until:
            self.left -= 1
            return True
        return False


class RateLimits:
    def __init__(self, broker: str, rate: float, burst: int, mac: Callable[[bytes], bytes]) -> None:
        self._redis = _connect(broker)
        self._take = self._redis.register_script(TAKE)
        self._rate, self._burst, self._mac = rate, burst, mac
        # Small beside both, so that what is lost of a share is not missed.
        self._wanted = max(1, min(burst // 50, int(rate / 10)))
        self._shares: dict[str, Share] = {}
        self._away_until = 0.0

    async def delay(self, token: str) -> float:
        """0 if the request may pass, else after how many seconds the next one may."""
        # Keyed, because what was sent as a token may be anything: of an e-mail address a plain hash can be guessed.
        name = self._mac(f"token\0{token}".encode()).hex()
        share = self._share(name)
        if share.spend(time.monotonic()):
            return 0.0
        async with share.asking:  # those who waited here spend what the first of them has fetched
            if share.spend(time.monotonic()) or await self._is_away(name, share):
                return 0.0
            if share.spend(time.monotonic()):
                return 0.0
            return max(share.empty_until - time.monotonic(), 0.001)

    async def close(self) -> None:
        await self._redis.aclose()

    def _share(self, name: str) -> Share:
        if len(self._shares) >= MOST_TOKENS:
            self._shares.clear()
        return self._shares.setdefault(name, Share())

    async def _is_away(self, name: str, share: Share) -> bool:
        """Ask for more, unless the bucket is known to be empty. True if there is nobody to ask."""
        moment = time.monotonic()
        if moment < self._away_until:
            return True
        if moment < share.empty_until:
            return False
        try:
            taken, milliseconds = await self._take(
                keys=[f"lethe:rate:{name}"], args=[self._rate, self._burst, self._wanted]
            )
        except (RedisError, OSError) as error:
            log.warning("rate_limits.off", reason=type(error).__name__)
            self._away_until = time.monotonic() + AWAY_SECONDS
            return True
        moment = time.monotonic()
        share.left, share.left_until = taken, moment + SHARE_SECONDS
        share.empty_until = 0.0 if taken else moment + milliseconds / 1000
        return False


class RateLimit:
    """Refuses a request over the limit of its token, before its body is read."""

    def __init__(self, app: ASGIApp, limits: RateLimits, refuse: Refuse) -> None:
        self._app = app
        self._limits = limits
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (seconds := await self._limits.delay(token)):
            refusal = self._refuse(Request(scope), TooManyRequests(math.ceil(seconds)))
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _connect(broker: str) -> Redis:
    return Redis.from_url(
        broker.replace("redis+socket://", "unix://", 1),
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
