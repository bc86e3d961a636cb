"""Batches that cannot be done are halved until the deletion that cannot be done stands alone.

For one among n that costs about 2 log2(n) batches, and the others complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from service.store.states import DeletionStatus
from service.store.tables import DeletionTarget

RELEASED = "It goes on by itself in a batch of at most {limit}, so that no other deletion holds it up."


def half(targets: Sequence[DeletionTarget]) -> int | None:
    """How many may go on together when these could not. None for one alone, with which nothing else can be done."""
    return (len(targets) + 1) // 2 if len(targets) > 1 else None


def give_up(target: DeletionTarget, reason: str, limit: int | None, moment: datetime) -> None:
    """For good, unless a smaller batch may fare better. To be released into one does not count as an attempt."""
    if limit is None:
        target.status = DeletionStatus.FAILED
        return
    target.failure = f"{reason.rstrip('.')}. {RELEASED.format(limit=limit)}"
    target.batch_limit, target.not_before = limit, moment
    target.attempts -= 1
