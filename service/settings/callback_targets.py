"""Allowed targets of callbacks: the form of their URLs, and the addresses they may reach.

A caller chooses the URL, and Lethe sends the request from inside the operator's network. So addresses outside the
public internet are refused unless the operator has allowed them.
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
"""No user info, no fragment, only ASCII: all parsers read it the same way."""
LONGEST_URL = 2_000
NOT_PUBLIC = (
    "the host of the URL has an address that is not public; choose a public one, or ask the operator to add the host "
    "or its network to LETHE_CALLBACK_ALLOW"
)
NOT_ENCRYPTED = "plain http is allowed only for targets in LETHE_CALLBACK_ALLOW; use https"


@dataclass(frozen=True)
class AllowedTargets:
    """Hosts and networks that the operator allows."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowedTargets:
        """Parse `127.0.0.0/8,hooks.internal`. Raise ValueError for entries that are neither a host nor a network."""
        hosts, networks = set(), []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            if (network := _parse_network(entry)) is not None:
                networks.append(network)
            elif re.fullmatch(HOST, entry):
                hosts.add(entry)
            else:
                raise ValueError("list host names and networks, like 10.0.0.0/8,hooks.internal")
        return cls(frozenset(hosts), tuple(networks))

    def refusal(self, scheme: str, host: str, addresses: Sequence[str]) -> str | None:
        """Return why a host with these addresses may not be called, or None if it may."""
        parsed = [ip_address(address) for address in addresses]
        if host.lower() in self.hosts or all(map(self._contains, parsed)):
            return None
        if scheme != "https":
            return NOT_ENCRYPTED
        return None if all(is_public(address) or self._contains(address) for address in parsed) else NOT_PUBLIC

    def _contains(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self.networks)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is certainly public. Addresses that embed another one (IPv4-mapped, 6to4, NAT64) are not."""
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    if isinstance(address, IPv6Address):
        special = special or address.is_site_local or address.sixtofour is not None
    return address.is_global and not special


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    """Parse a network, or a single address as a network of one."""
    try:
        return ip_network(text)
    except ValueError:
        return None
