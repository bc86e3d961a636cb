"""Client addresses as the limits count them: an IPv4 address, or the /64 network that one IPv6 subscriber gets."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
SUBSCRIBER_BITS = 64


def client_key(host: str) -> str:
    """Return the name under which a client is counted; the host itself if it is no address (a Unix socket)."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((int(address), SUBSCRIBER_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


def is_within(host: str, networks: tuple[Network, ...]) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in networks)
