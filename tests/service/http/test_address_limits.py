from __future__ import annotations

import pytest

from service.http import address_limits
from service.http.address_limits import AddressLimits


def test_an_address_has_a_burst_and_then_waits() -> None:
    limits = AddressLimits(rate=0.1, burst=3)
    assert [limits.delay("192.0.2.1") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert 9 < limits.delay("192.0.2.1") <= 10
    assert limits.delay("192.0.2.2") == 0.0


def test_a_bucket_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = AddressLimits(rate=2.0, burst=1)
    clock = iter([0.0, 0.1, 0.6, 100.0, 100.0])
    monkeypatch.setattr(address_limits.time, "monotonic", lambda: next(clock))
    assert [limits.delay("192.0.2.1") == 0.0 for _ in range(5)] == [True, False, True, True, False]


def test_the_addresses_of_one_ipv6_network_share_a_bucket() -> None:
    limits = AddressLimits(rate=0.1, burst=1)
    assert limits.delay("2001:db8::1") == 0.0
    assert limits.delay("2001:db8::2") > 0
    assert limits.delay("2001:db8:0:1::1") == 0.0


def test_the_number_of_buckets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_limits, "MAX_ADDRESSES", 2)
    limits = AddressLimits(rate=0.1, burst=1)
    for number in range(5):
        assert limits.delay(f"192.0.2.{number}") == 0.0
    assert limits.delay("192.0.2.4") > 0, "the latest are remembered"
    assert len(limits._buckets) == 2
