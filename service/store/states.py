"""Values of status, role and device columns."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Role of a caller. A token has exactly one."""

    COMPLIANCE = "compliance"
    """Creates deletions and reads its own."""
    OPERATOR = "operator"
    """Reads every deletion and runs the service."""
    AUDITOR = "auditor"
    """Reads deletions and certificates."""
    ENGINEER = "engineer"
    """Registers models and downloads posteriors."""


class DeletionStatus(StrEnum):
    """Status of a deletion and of each of its models. A deletion has the status of its least advanced model."""

    PENDING = "pending"
    """Stored durably and waiting for a worker."""
    RUNNING = "running"
    """In a batch that a worker holds."""
    COMPLETED = "completed"
    """Forgotten, erased and certified; or no model held the subject."""
    FAILED = "failed"
    """Not attempted again unless somebody retries it. `failure` states the reason."""
    CANCELLED = "cancelled"
    """Cancelled by its caller before a worker claimed it."""


class BatchStatus(StrEnum):
    """Status of a batch. Only one batch of a model can be running."""

    RUNNING = "running"
    """A worker holds its lease."""
    PUBLISHED = "published"
    """Its version is current, or was."""
    FAILED = "failed"
    """It raised an error. Its deletions are pending again or have failed."""
    ABANDONED = "abandoned"
    """Its lease expired or was released. Its deletions are in another batch or wait for one."""


class RefreshStatus(StrEnum):
    """Status of a refresh. Only one refresh of a model can be waiting or running."""

    WAITING = "waiting"
    """Requested, or released by its worker; it starts or continues once a worker is idle."""
    RUNNING = "running"
    """A worker holds its lease."""
    PUBLISHED = "published"
    """Its version is current, or was."""
    FAILED = "failed"
    """It raised an error, or its draws failed the checks that those before had passed. `failure` states the reason."""
    ABANDONED = "abandoned"
    """A deletion of the model came first. What it had computed was destroyed."""


class Device(StrEnum):
    """Device that a model needs. Each has its own broker queue and its own workers."""

    CPU = "cpu"
    """Any worker. One with a GPU uses it."""
    CUDA = "cuda"
    """Only a worker with a GPU."""


class SigningUse(StrEnum):
    """What a signing key signs."""

    STATEMENTS = "statements"
    """Receipts, certificates and callbacks."""
    LOG = "log"
    """Checkpoints of the log."""


class CallbackStatus(StrEnum):
    """Status of a callback."""

    PENDING = "pending"
    """To be sent, for the first time or again."""
    DELIVERED = "delivered"
    """The receiver answered with 2xx."""
    DEAD = "dead"
    """Not sent again unless an operator resends it. `failure` states the reason."""
