from __future__ import annotations

import os
import socket

import pytest

from service.settings import ConfigurationError, Settings
from service.store.database import Database
from tests import samples
from worker.context import WorkerContext, process_name
from worker.forget import forget_pending
from worker.sweep import sweep_once


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


def test_a_worker_forgets_without_the_identity_key(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    without_key = settings.model_copy(update={"identity_key": None})
    with pytest.raises(ConfigurationError, match="LETHE_IDENTITY_KEY is not set"):
        without_key.identity_keys()
    context = WorkerContext.open(without_key)
    assert forget_pending(context, model_id)
    sweep_once(context.database, context.artifacts, context.doorbell)
    context.doorbell.close()
    context.database.close()
