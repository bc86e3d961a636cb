"""What a certificate states, in values that survive JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vocabulary.levels import Level


@dataclass(frozen=True)
class Assumption:
    """One condition of the bound: what was computed, what it had to stay within, and what it means."""

    name: str
    holds: bool
    value: float
    limit: float
    meaning: str


@dataclass(frozen=True)
class Certificate:
    """A bound in nats on the KL divergence between the processed posterior and the reference, or why there is none.

    `epsilon` is what a policy is compared with: a bound, or the upper end of the `interval` that holds an estimate with
    95 % confidence. Of a network it is an excess: `direction` says of what. `epsilon_reverse` is the other direction,
    NaN where it is not computed. `constants` are the numbers it was computed from: a frozen dataclass, one for each way
    to compute a bound.
    """

    epsilon: float
    epsilon_reverse: float
    level: Level
    reference: str
    direction: str
    n_retained: int
    assumptions: tuple[Assumption, ...]
    constants: Any
    not_proved: tuple[str, ...]
    interval: tuple[float, float] | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the level is "none": the conditions that failed, in words."""
        return tuple(f"not shown: {a.meaning}" for a in self.assumptions if not a.holds)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        fields = {**asdict(self), "reasons": self.reasons}
        return {name: plain(value) for name, value in fields.items()}


def plain(value: object) -> object:
    """As JSON can hold it; infinity and NaN, which it lacks, become None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
