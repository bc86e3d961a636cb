"""What releasing draws of the processed posterior gives away.

T independent draws of it and T of the reference are T·KL nats apart. However an attacker tests which of the two he was
given, his advantage (true less false positive rate) is at most their total variation, and that at most

    √(T·KL/2)              M. Pinsker: the smaller one up to T·KL = 1.59
    √(1 - e^(-T·KL))       J. Bretagnolle and C. Huber, 1979: never above 1

Draws of one chain are not independent, and parameters or stored samples are no draws: releasing these is not covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.errors import InvalidInput


@dataclass(frozen=True)
class Release:
    """A number of released draws, what they cost in nats, and the most an attacker can make of them."""

    draws: int
    nats: float
    advantage: float


def advantages(epsilon: float, draws: tuple[int, ...] = (1, 10, 100)) -> tuple[Release, ...]:
    """The attacker's advantage by number of draws, for a divergence of at most `epsilon`; 1 where that is unknown."""
    if epsilon < 0:
        raise InvalidInput(f"epsilon is {epsilon}: a divergence is not negative, pass a bound of at least 0 nats")
    if any(count < 1 for count in draws):
        raise InvalidInput(f"draws are {draws}: pass positive numbers of released draws")
    return tuple(Release(count, count * epsilon, _total_variation(count * epsilon)) for count in draws)


def _total_variation(nats: float) -> float:
    if math.isnan(nats):
        return 1.0
    return min(math.sqrt(nats / 2), math.sqrt(-math.expm1(-nats)))
