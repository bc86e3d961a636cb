"""Bound on what an attacker learns from released draws of the processed posterior.

The divergence between T independent draws of it and T of the reference is T·KL nats. The advantage (true positive rate
minus false positive rate) of any test that tells the two apart is at most their total variation, which is at most

    √(T·KL/2)              M. Pinsker: the smaller of the two up to T·KL = 1.59
    √(1 - e^(-T·KL))       J. Bretagnolle and C. Huber, 1979: never above 1

T draws that are picked by their weights from one sample set are not independent: their divergence grows as T², since
each one can be a repeat of every other.

Not covered: draws of one chain, which are not independent, and the release of parameters or stored samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.errors import InvalidInput


@dataclass(frozen=True)
class Release:
    """Number of released draws, their divergence in nats, and the largest possible advantage of an attacker."""

    draws: int
    nats: float
    advantage: float


def bound_advantages(
    epsilon: float, draws: tuple[int, ...] = (1, 10, 100), picked_by_weight: bool = False
) -> tuple[Release, ...]:
    """Bound an attacker's advantage for each number of draws and a divergence of at most `epsilon`; 1 if unknown."""
    if epsilon < 0:
        raise InvalidInput(f"epsilon is {epsilon}: a divergence is never negative, pass a bound of at least 0 nats")
    if any(count < 1 for count in draws):
        raise InvalidInput(f"draws are {draws}: pass positive numbers of draws to release")
    power = 2 if picked_by_weight else 1
    return tuple(Release(count, count**power * epsilon, _total_variation(count**power * epsilon)) for count in draws)


def _total_variation(nats: float) -> float:
    if math.isnan(nats):
        return 1.0
    return min(math.sqrt(nats / 2), math.sqrt(-math.expm1(-nats)))
