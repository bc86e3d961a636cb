from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
import structlog

from service.http import connections as module
from service.http.connections import RESERVED_FILES, ConnectionLimits, Connections
from service.settings import Settings

LIMITS = ConnectionLimits(
    total=4, per_address=2, header_seconds=1.0, progress_seconds=1.0, proxies=(ip_network("10.0.0.0/8"),)
)


@dataclass(eq=False)
class Peer:
    host: str
    is_slow: bool = False
    is_dropped: bool = field(default=False, init=False)

    @property
    def address(self) -> str:
        return self.host

    def is_too_slow(self, now: float) -> bool:
        return self.is_slow

    def drop(self) -> None:
        self.is_dropped = True


def in_loop(scenario: Callable[[Connections], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Connections(LIMITS))

    asyncio.run(run())


def test_a_new_connection_displaces_the_oldest_waiting_one_of_its_address() -> None:
    async def scenario(connections: Connections) -> None:
        first, second, third, stranger = Peer("a"), Peer("a"), Peer("a"), Peer("b")
        assert all(connections.admit(peer) for peer in (stranger, first, second, third))
        assert [peer.is_dropped for peer in (stranger, first, second, third)] == [False, True, False, False]

    in_loop(scenario)


def test_a_connection_with_a_request_is_not_displaced() -> None:
    async def scenario(connections: Connections) -> None:
        first, second, third = Peer("a"), Peer("a"), Peer("a")
        for peer in (first, second):
            assert connections.admit(peer)
            connections.work(peer)
        assert not connections.admit(third)
        connections.wait(first)
        assert connections.admit(third)
        assert (first.is_dropped, second.is_dropped) == (True, False)

    in_loop(scenario)


def test_the_total_counts_every_address_and_those_that_leave_make_room() -> None:
    async def scenario(connections: Connections) -> None:
        peers = [Peer(host) for host in "abcd"]
        for peer in peers:
            assert connections.admit(peer)
            connections.work(peer)
        assert not connections.admit(Peer("e"))
        connections.leave(peers[0])
        connections.leave(peers[0])
        assert connections.admit(Peer("e"))

    in_loop(scenario)


def test_a_trusted_proxy_has_no_limit_of_its_own() -> None:
    async def scenario(connections: Connections) -> None:
        proxies = [Peer("10.0.0.1") for _ in range(4)]
        assert all(connections.admit(peer) for peer in proxies)
        assert not any(peer.is_dropped for peer in proxies)

    in_loop(scenario)


def test_slow_connections_are_dropped_and_the_log_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)

    async def scenario(connections: Connections) -> None:
        slow = [Peer(host, is_slow=True) for host in "abc"]
        fast = Peer("d")
        assert all(connections.admit(peer) for peer in (*slow, fast))
        while not all(peer.is_dropped for peer in slow):
            await asyncio.sleep(0.01)
        assert not fast.is_dropped

    with structlog.testing.capture_logs() as logs:
        in_loop(scenario)
    assert [line["event"] for line in logs] == ["connections.closed"]


def test_counts_between_two_lines_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_SECONDS", 0.2)

    async def scenario(connections: Connections) -> None:
        for _ in range(1_000):
            connections.count("malformed")
        await asyncio.sleep(0.25)
        connections.count("malformed")

    with structlog.testing.capture_logs() as logs:
        in_loop(scenario)
    assert sum(line["malformed"] for line in logs) == 1_001
    assert len(logs) <= 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_descriptors_are_left_for_the_database(settings: Settings) -> None:
    assert ConnectionLimits.from_settings(settings, file_limit=1_000_000).total == settings.max_connections
    assert ConnectionLimits.from_settings(settings, file_limit=1_024).total == 1_024 - RESERVED_FILES
