"""Posting to a URL that somebody else chose.

The name is resolved once, the address is judged, and the connection goes to that very address: a name that answers
differently a moment later gains nothing. Certificate and Host header are still the name's. No redirect is followed, no
proxy is asked, and of the answer nothing is read but its status.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import httpx

from service.settings.callback_targets import AllowedTargets
from worker.callbacks.message import Message

PORTS = {"http": 80, "https": 443}
HEADERS = {"User-Agent": f"lethe/{version('lethe')}", "Accept": "*/*", "Connection": "close"}

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


class NotDelivered(Exception):
    """This attempt failed; the message says why in plain words and holds no part of the URL."""


class Forbidden(NotDelivered):
    """The target may not be called; trying again does not help."""


async def resolve_name(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True)
class Courier:
    targets: AllowedTargets
    timeout_seconds: float
    tls: ssl.SSLContext
    resolve: Resolver = resolve_name

    async def deliver(self, message: Message) -> None:
        """Raise NotDelivered unless the receiver answers with 2xx in time."""
        try:
            # Around everything: a receiver that answers one byte at a time would outlive any timeout of a read.
            async with asyncio.timeout(self.timeout_seconds):
                status = await self._post(message)
        except TimeoutError:
            raise NotDelivered(f"the receiver did not answer within {self.timeout_seconds:g} seconds") from None
        except (socket.gaierror, UnicodeError):
            raise NotDelivered("the host name of the URL could not be resolved") from None
        except (httpx.HTTPError, OSError) as error:
            raise NotDelivered(_in_plain_words(error)) from error
        if not 200 <= status < 300:
            raise NotDelivered(f"the receiver answered {status}; 2xx would have been a delivery")

    async def _post(self, message: Message) -> int:
        url = httpx.URL(message.url)
        addresses = await self.resolve(url.host, url.port or PORTS[url.scheme])
        if (refusal := self.targets.refusal(url.scheme, url.host, addresses)) is not None:
            raise Forbidden(refusal)
        headers = {**HEADERS, **message.headers, "Host": url.netloc.decode()}
        async with httpx.AsyncClient(verify=self.tls, trust_env=False, timeout=self.timeout_seconds) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=addresses[0]),
                content=message.body,
                headers=headers,
                extensions={"sni_hostname": url.host},
            )
            response = await client.send(request, stream=True, follow_redirects=False)
            await response.aclose()
        return response.status_code


def _in_plain_words(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "no secure connection to the receiver: its certificate must be valid for the URL's host name"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return "the receiver could not be reached"
    return f"the connection to the receiver broke ({type(error).__name__})"
