from __future__ import annotations

import os
import socket

from service.settings import Settings
from worker.context import WorkerContext, process_name


def test_a_process_is_named_after_its_host_and_id() -> None:
    assert process_name() == f"{socket.gethostname()}:{os.getpid()}"


def test_claims_follow_the_settings(settings: Settings, context: WorkerContext) -> None:
    terms = context.terms
    assert (terms.lease_seconds, terms.max_attempts) == (settings.lease_seconds, settings.max_attempts)
    assert terms.limits.most_deletions == settings.batch_most_deletions
    assert terms.limits.largest_fraction == settings.batch_largest_fraction


def test_children_of_a_worker_share_its_name(settings: Settings) -> None:
    named, unnamed = WorkerContext.open(settings, "host:1"), WorkerContext.open(settings)
    assert (named.name, unnamed.name) == ("host:1", process_name())
    for context in (named, unnamed):
        context.doorbell.close()
        context.database.close()
