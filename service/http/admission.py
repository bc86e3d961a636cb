"""Admission of requests before their body is read: who sends them, and whether that is within the rate limits.

A valid token has a bucket under its id, whatever the spelling of the header. Requests that are refused for want of a
valid token count against the client's address; they never slow down valid tokens from the same address.
"""

from __future__ import annotations

import math

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.address_limits import AddressLimits
from service.http.caller_cache import CallerCache
from service.http.errors import TABLE, TokenMissing, TooManyRequests
from service.http.middleware import RenderError
from service.http.rate_limits import RateLimits
from service.store.access.tokens import Caller

MISSING = "send `Authorization: Bearer <token>`; `lethe token issue` creates one"
UNKNOWN = "the token is unknown, revoked or expired; `lethe token issue` creates a new one"

TOO_MANY_STRANGERS = "this address has sent too many requests without a valid token"


class Admission:
    """Sets `state.caller` of each request, None without a valid token, and refuses those over a limit."""

    def __init__(
        self,
        app: ASGIApp,
        callers: CallerCache,
        tokens: RateLimits,
        addresses: AddressLimits,
        render_error: RenderError,
    ) -> None:
        self._app = app
        self._callers = callers
        self._tokens = tokens
        self._addresses = addresses
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._find_caller(scope)
        except tuple(TABLE) as error:  # the database is unavailable
            await self._answer(error, scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if caller is None:
            await self._serve_stranger(scope, receive, send)
        elif seconds := await self._tokens.delay(caller.token_id):
            await self._answer(TooManyRequests(math.ceil(seconds)), scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _find_caller(self, scope: Scope) -> Caller | None:
        token = bearer_token(scope)
        return await self._callers.find(token) if token else None

    async def _serve_stranger(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request without a valid token. An answer 401 becomes 429 if the address has had too many of them."""
        is_replaced = False

        async def send_counted(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start" and message["status"] == 401:
                seconds = self._addresses.delay(client_host(scope))
                if seconds:
                    is_replaced = True
                    error = TooManyRequests(math.ceil(seconds), TOO_MANY_STRANGERS)
                    await self._answer(error, scope, receive, send)
            if not is_replaced:
                await send(message)

        if _has_body(scope):  # nothing that strangers send is read
            error = TokenMissing(UNKNOWN if bearer_token(scope) else MISSING)
            await self._answer(error, scope, receive, send_counted)
        else:
            await self._app(scope, receive, send_counted)

    async def _answer(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._render_error(Request(scope), error)
        await response(scope, receive, send)


def bearer_token(scope: Scope) -> str:
    """Return the token of the Authorization header, empty if there is none."""
    scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def client_host(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
