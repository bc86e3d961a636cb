"""Splitting of failing batches: halve them until the deletion that cannot be completed is alone.

One such deletion among n costs about 2 log2(n) batches, and all others complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from service.store.states import DeletionStatus
from service.store.tables import DeletionTarget

SPLIT_NOTE = "It continues in a batch of at most {limit}, so that other deletions do not hold it up."


def half_size(targets: Sequence[DeletionTarget]) -> int | None:
    """Return the batch limit for deletions that failed together. None for a single one, which cannot be split."""
    return (len(targets) + 1) // 2 if len(targets) > 1 else None


def fail_or_split(target: DeletionTarget, reason: str, limit: int | None, now: datetime) -> None:
    """Fail the target for good, or with `limit` let it continue in a smaller batch without counting an attempt."""
    if limit is None:
        target.status = DeletionStatus.FAILED
        return
    target.failure = f"{reason.rstrip('.')}. {SPLIT_NOTE.format(limit=limit)}"
    target.batch_limit, target.not_before = limit, now
    target.attempts -= 1
