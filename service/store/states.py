"""The words that columns hold: roles, and the states of whatever has some. Documented data, not code."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Who may do what; a token has exactly one."""

    COMPLIANCE = "compliance"  # creates deletions, reads its own
    OPERATOR = "operator"  # sees every deletion and runs the service
    AUDITOR = "auditor"  # reads deletions and certificates
    ENGINEER = "engineer"  # registers models, pulls posteriors


class DeletionStatus(StrEnum):
    """Of a deletion, and of each model it concerns. A deletion is as far as the least advanced of its models."""

    PENDING = "pending"  # durable, waiting for a worker
    RUNNING = "running"  # in a batch that a worker holds
    COMPLETED = "completed"  # forgotten, erased, certified; or no model held the subject
    FAILED = "failed"  # given up; `failure` says why in plain words
    CANCELLED = "cancelled"  # taken back by its caller before a worker began


class BatchStatus(StrEnum):
    RUNNING = "running"  # a worker holds its lease
    PUBLISHED = "published"  # its version is current, or was
    FAILED = "failed"  # it raised; its deletions went back to pending or failed
    ABANDONED = "abandoned"  # its lease ran out or was given back; its deletions are in another batch, or wait for one


class Device(StrEnum):
    """What a model needs to be worked on; a queue of the broker and a class of workers for each."""

    CPU = "cpu"  # any worker will do; one that has a GPU uses it
    CUDA = "cuda"  # only a worker with a GPU


class CallbackStatus(StrEnum):
    PENDING = "pending"  # to be sent, for the first time or again
    DELIVERED = "delivered"  # the receiver answered with 2xx
    DEAD = "dead"  # given up; `failure` says why in plain words, an operator may send it again
