from __future__ import annotations

from ipaddress import ip_network

import pytest

from service.http.addresses import client_key, is_within


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_counted_by_address_or_subscriber_network(host: str, key: str) -> None:
    assert client_key(host) == key


@pytest.mark.parametrize(("host", "inside"), [("10.1.2.3", True), ("11.1.2.3", False), ("::1", False), ("", False)])
def test_a_host_is_within_a_network(host: str, inside: bool) -> None:
    assert is_within(host, (ip_network("10.0.0.0/8"),)) is inside
