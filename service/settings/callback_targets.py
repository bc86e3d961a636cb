"""Where callbacks may go: how their URLs look, and which addresses may be called.

A caller chooses the URL and we make the request from inside the operator's network, so an address that is not on the
public internet is refused unless the operator has named it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = rf"{LABEL}(?:\.{LABEL})*"
PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
URL_PATTERN = rf"^https?://{HOST}(?::{PORT})?(?:[/?][A-Za-z0-9._~:/?@!$&'()*+,;=%-]*)?$"
"""No user info, no fragment, nothing but ASCII: there is one way to read it."""
LONGEST_URL = 2_000
NOT_PUBLIC = (
    "the host of the URL has an address that is not public; choose a public one, or have the operator add the host or "
    "its network to LETHE_CALLBACK_ALLOW"
)
NOT_ENCRYPTED = "plain http goes only to targets in LETHE_CALLBACK_ALLOW; use https"


@dataclass(frozen=True)
class AllowedTargets:
    """The hosts and networks that the operator vouches for."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowedTargets:
        """From `127.0.0.0/8,hooks.internal`; raise ValueError at what is neither a host nor a network."""
        hosts, networks = set(), []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            if (network := _network(entry)) is not None:
                networks.append(network)
            elif re.fullmatch(HOST, entry):
                hosts.add(entry)
            else:
                raise ValueError("list host names and networks, like 10.0.0.0/8,hooks.internal")
        return cls(frozenset(hosts), tuple(networks))

    def refusal(self, scheme: str, host: str, addresses: Sequence[str]) -> str | None:
        """Why these addresses of a host may not be called; None if they may, each of them."""
        if host.lower() in self.hosts or all(self._vouched(ip_address(address)) for address in addresses):
            return None
        if scheme != "https":
            return NOT_ENCRYPTED
        fine = all(is_public(found) or self._vouched(found) for found in map(ip_address, addresses))
        return None if fine else NOT_PUBLIC

    def _vouched(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """On the public internet for certain: an address that carries another one (IPv4-mapped, 6to4, NAT64) is not."""
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    if isinstance(address, IPv6Address):
        special = special or address.is_site_local or address.sixtofour is not None
    return address.is_global and not special


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """A network, or an address as a network of one."""
    try:
        return ip_network(text)
    except ValueError:
        return None
