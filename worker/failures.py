"""Classification of failures: whether a retry may succeed, and what to do next.

    transient    retried automatically, with growing delays, up to the maximum number of attempts
    permanent    a retry would fail again: the batch is halved until the deletion that cannot be processed is alone

At the last attempt, a transient failure that may depend on the contents of the batch is treated as permanent.
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
from service.store.errors import (
    ArtifactDamaged,
    ArtifactsUnavailable,
    CertificateRejected,
    ClockBehind,
    DiskFull,
    Gone,
    KeyInactive,
    PolicyMissed,
)

RETRIED = "It is retried automatically a few times; after that, retry it."
DISK_FULL = f"the disk is full: nothing was damaged; free space where artifacts are stored. {RETRIED}"
NO_MEMORY = f"memory ran out: give the worker more, or run fewer processes on its machine. {RETRIED}"
NO_FILE = f"a file of the model is damaged or missing: restore it from the backup under its digest. {RETRIED}"
NO_DATABASE = f"the database did not answer or refused: check that it runs and its disk has space. {RETRIED}"
NO_ACCESS = f"a file could not be read or written: check that the artifact storage is available. {RETRIED}"
TOO_LONG = (
    "it ran longer than LETHE_TASK_SECONDS and was stopped: raise that limit, or set `seconds` in the model's "
    "policy below it, and retry"
)


@dataclass(frozen=True)
class Failure:
    reason: str
    permanent: bool
    splits: bool
    """Whether a smaller batch may succeed. Not if the cause is outside of the batch."""


@dataclass(frozen=True)
class FailureKind:
    """Row of the table. `reason` is None if the error's own message says what to do."""

    matches: Callable[[Exception], bool]
    reason: str | None
    permanent: bool
    splits: bool


def _is(*types: type[Exception]) -> Callable[[Exception], bool]:
    return lambda error: isinstance(error, types)


def _is_disk_full(error: Exception) -> bool:
    has_errno = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return has_errno or isinstance(error, DiskFull)


KINDS = (  # the first match counts
    FailureKind(is_out_of_memory, NO_MEMORY, permanent=False, splits=True),
    FailureKind(_is(ml.ForgettingError, PolicyMissed), None, permanent=True, splits=True),
    FailureKind(_is(SoftTimeLimitExceeded), TOO_LONG, permanent=True, splits=True),
    FailureKind(_is(KeyInactive, ClockBehind, CertificateRejected), None, permanent=False, splits=False),
    FailureKind(_is(ArtifactDamaged, Gone), NO_FILE, permanent=False, splits=False),
    FailureKind(_is_disk_full, DISK_FULL, permanent=False, splits=False),
    FailureKind(_is(OSError, ArtifactsUnavailable), NO_ACCESS, permanent=False, splits=False),
    FailureKind(_is(DBAPIError), NO_DATABASE, permanent=False, splits=False),
)


def classify(error: Exception, batch_id: uuid.UUID) -> Failure:
    """Return the failure that an error means for its batch."""
    for kind in KINDS:
        if kind.matches(error):
            return Failure(kind.reason or str(error), kind.permanent, kind.splits)
    reason = f"unexpected {type(error).__name__}: see the worker's log for batch {batch_id}"
    return Failure(reason, permanent=False, splits=True)
