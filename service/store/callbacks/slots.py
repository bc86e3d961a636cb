"""Attempts that a sender makes at the same time, shared out so that no caller and no slow host keeps others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Slots:
    """Attempts in flight, by caller and host."""

    total: int = 64
    per_caller: int = 32
    per_host: int = 16
    """Bound for one caller on one host: two callers may use the same receiver, and one of them may make it slow."""
    reserved: int = 16
    """Slots for callers without an attempt in flight."""
    in_flight: Counter[tuple[str, str]] = field(default_factory=Counter)

    def copy(self) -> Slots:
        return Slots(self.total, self.per_caller, self.per_host, self.reserved, self.in_flight.copy())

    def take(self, caller: str, host: str) -> None:
        self.in_flight[caller, host] += 1

    def release(self, caller: str, host: str) -> None:
        self.in_flight[caller, host] -= 1
        if not self.in_flight[caller, host]:
            del self.in_flight[caller, host]

    def used_by(self, caller: str) -> int:
        return sum(count for (name, _), count in self.in_flight.items() if name == caller)

    def free_for(self, caller: str) -> int:
        """Return the number of further attempts that the caller may start."""
        used, free = self.used_by(caller), self.total - self.in_flight.total()
        shared = min(self.per_caller - used, free - self.reserved)
        first = 1 if used == 0 and free > 0 else 0
        return max(shared, first)

    def has_room_on(self, caller: str, host: str) -> bool:
        return self.in_flight[caller, host] < self.per_host

    def full_hosts(self, caller: str) -> Sequence[str]:
        return [host for (name, host), count in self.in_flight.items() if name == caller and count >= self.per_host]

    def in_turn(self, callers: Iterable[str]) -> Sequence[str]:
        """Return the callers in the order in which they get slots: those with the fewest attempts in flight first."""
        return sorted(callers, key=self.used_by)
