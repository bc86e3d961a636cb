"""What a failure means: whether the same may work later, and in plain words what to do next.

    transient    tried again by itself, later each time, up to the largest number of attempts
    permanent    the same would fail again: the batch is halved until the deletion that cannot be done stands alone

A transient failure that has to do with what is in the batch is treated as a permanent one at the last attempt.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import DBAPIError

import ml
from ml.numerics.memory import is_out_of_memory
from service.store.errors import ArtifactDamaged, ArtifactsUnavailable, DiskFull, Gone, PolicyMissed

TRIED_AGAIN = "It is tried again by itself a few times; after that, retry it."
DISK_FULL = f"the disk is full: nothing was damaged; make room where artifacts are kept. {TRIED_AGAIN}"
NO_MEMORY = f"memory ran out: give the worker more, or run fewer at once on its machine. {TRIED_AGAIN}"
NO_FILE = f"a file of the model is damaged or gone: restore it from the backup under its digest. {TRIED_AGAIN}"
NO_DATABASE = f"the database did not answer or refused: see that it runs and its disk has room. {TRIED_AGAIN}"
NO_ACCESS = f"a file could not be read or written: see that the place where artifacts are kept answers. {TRIED_AGAIN}"
TOO_LONG = (
    "it computed for longer than LETHE_TASK_SECONDS and was stopped: raise that limit, or set `seconds` in the model's "
    "policy below it, and retry"
)


@dataclass(frozen=True)
class Failure:
    reason: str
    permanent: bool
    splits: bool
    """Whether fewer deletions at once may fare better. Not so when what surrounds the work is at fault."""


@dataclass(frozen=True)
class Kind:
    """A row of the table. `reason` None: the error says itself what to do."""

    fits: Callable[[Exception], bool]
    reason: str | None
    permanent: bool
    splits: bool


def _is(*types: type[Exception]) -> Callable[[Exception], bool]:
    return lambda error: isinstance(error, types)


def _is_full(error: Exception) -> bool:
    by_errno = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return by_errno or isinstance(error, DiskFull)


KINDS = (  # the first that fits
    Kind(is_out_of_memory, NO_MEMORY, permanent=False, splits=True),
    Kind(_is(ml.ForgettingError, PolicyMissed), None, permanent=True, splits=True),
    Kind(_is(SoftTimeLimitExceeded), TOO_LONG, permanent=True, splits=True),
    Kind(_is(ArtifactDamaged, Gone), NO_FILE, permanent=False, splits=False),
    Kind(_is_full, DISK_FULL, permanent=False, splits=False),
    Kind(_is(OSError, ArtifactsUnavailable), NO_ACCESS, permanent=False, splits=False),
    Kind(_is(DBAPIError), NO_DATABASE, permanent=False, splits=False),
)


def classify(error: Exception, batch_id: uuid.UUID) -> Failure:
    for kind in KINDS:
        if kind.fits(error):
            return Failure(kind.reason or str(error), kind.permanent, kind.splits)
    reason = f"unexpected {type(error).__name__}; the worker's log has it under batch {batch_id}"
    return Failure(reason, permanent=False, splits=True)
