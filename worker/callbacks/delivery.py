"""HTTP delivery of callbacks to URLs that callers chose.

The host name is resolved once, the address is checked, and the connection goes to that address: a name that resolves
differently a second later gains nothing (DNS rebinding). TLS and the Host header still use the name. Redirects and
proxies are not used, and only the status of the response is read.
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
    """The attempt failed. The message gives the reason and contains no part of the URL."""


class TargetForbidden(NotDelivered):
    """The target must not be called; a retry does not help."""


async def resolve_name(host: str, port: int) -> Sequence[str]:
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


@dataclass(frozen=True)
class CallbackClient:
    targets: AllowedTargets
    timeout_seconds: float
    tls: ssl.SSLContext
    resolve: Resolver = resolve_name

    async def deliver(self, message: Message) -> None:
        """Raise NotDelivered unless the receiver answers with 2xx in time."""
        try:
            # A limit for the whole attempt: a receiver that sends one byte at a time never hits a read timeout.
            async with asyncio.timeout(self.timeout_seconds):
                status = await self._post(message)
        except TimeoutError:
            raise NotDelivered(f"the receiver did not answer within {self.timeout_seconds:g} seconds") from None
        except (socket.gaierror, UnicodeError):
            raise NotDelivered("the host name of the URL could not be resolved") from None
        except (httpx.HTTPError, OSError) as error:
            raise NotDelivered(_describe_error(error)) from error
        if not 200 <= status < 300:
            raise NotDelivered(f"the receiver answered {status} instead of 2xx")

    async def _post(self, message: Message) -> int:
        url = httpx.URL(message.url)
        addresses = await self.resolve(url.host, url.port or PORTS[url.scheme])
        if (refusal := self.targets.refusal(url.scheme, url.host, addresses)) is not None:
            raise TargetForbidden(refusal)
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


def _describe_error(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "TLS to the receiver failed: its certificate must be valid for the URL's host name"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return "the receiver could not be reached"
    return f"the connection to the receiver broke ({type(error).__name__})"
