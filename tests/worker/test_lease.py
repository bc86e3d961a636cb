from __future__ import annotations

import math
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select, update

from ml.ladder.climb import Step
from service.settings import Settings
from service.store.batches.lifecycle import Claim, claim_batch
from service.store.database import Database
from service.store.tables import Batch, now
from tests import samples
from tests.waiting import wait_until
from worker import lease
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.lease import Lease


def claim_sample(settings: Settings, database: Database, context: WorkerContext) -> Claim:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    with database.writing() as session:
        claim = claim_batch(session, model_id, context.name, context.terms)
    assert claim is not None
    return claim


def batch_of(database: Database) -> Batch:
    with database.reading() as session:
        return session.scalars(select(Batch)).one()


def test_a_job_shorter_than_a_heartbeat_still_writes_its_trace(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    with Lease(context, claim_sample(settings, database, context)) as lease_on_batch:
        lease_on_batch.device = "cpu"
        lease_on_batch.report("newton", 0.5)
        lease_on_batch.record_step(Step("newton", 1, 0.25, 0.1))
        lease_on_batch.report("newton", 0.75)
        lease_on_batch.record_step(Step("newton", 2, math.inf, 0.2))
        lease_on_batch.report("saving", 1.0)
    batch = batch_of(database)
    assert (batch.status, batch.phase, batch.percent, batch.device) == ("running", "saving", 100, "cpu")
    assert batch.trace is not None
    assert [phase["phase"] for phase in batch.trace["phases"]] == ["claimed", "newton", "saving"]
    assert all(0 <= phase["seconds"] < 60 for phase in batch.trace["phases"])
    assert [(step["step"], step["residual"]) for step in batch.trace["residuals"]] == [(1, 0.25), (2, None)]


def test_a_long_job_writes_its_trace_while_it_runs(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PROGRESS_SECONDS", 0.01)
    with Lease(context, claim_sample(settings, database, context)) as lease_on_batch:
        lease_on_batch.report("influence", 0.0)
        lease_on_batch.record_step(Step("influence", 1, 0.5, 0.1))
        trace = wait_until(lambda: batch_of(database).trace, "a heartbeat")
    assert trace["phases"][-1]["phase"] in ("claimed", "influence")


def test_progress_is_written_at_most_once_a_second(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lease.PROGRESS_SECONDS == 1.0
    monkeypatch.setattr(lease, "PROGRESS_SECONDS", 0.2)
    beats: list[float] = []

    def record_beat(*_: object) -> None:
        beats.append(time.monotonic())

    monkeypatch.setattr(lease, "renew_lease", record_beat)
    with Lease(context, claim_sample(settings, database, context)) as lease_on_batch:
        while len(beats) < 3:
            lease_on_batch.report("newton", 0.5)
        beats_before_exit = beats[:]
    assert all(later - earlier >= 0.19 for earlier, later in pairwise(beats_before_exit))


def test_a_lost_lease_writes_nothing(settings: Settings, database: Database, context: WorkerContext) -> None:
    with Lease(context, claim_sample(settings, database, context)) as lease_on_batch:
        with database.writing() as session:
            session.execute(update(Batch).values(status="abandoned", finished_at=now() - timedelta(seconds=1)))
        lease_on_batch.report("saving", 1.0)
    assert (batch_of(database).phase, batch_of(database).trace) == ("claimed", None)


def test_a_published_job_keeps_its_trace(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    forget_pending(context, model_id)
    batch = batch_of(database)
    assert (batch.status, batch.phase, batch.percent) == ("published", "published", 100)
    assert batch.trace is not None
    assert batch.rungs is not None
    phases = [phase["phase"] for phase in batch.trace["phases"]]
    assert phases[:3] == ["claimed", "loading", "influence"]
    assert phases[-3:] == ["effects", "saving", "publishing"]
    assert batch.trace["residuals"][0]["rung"] == "influence"
    assert len(batch.trace["residuals"]) == sum(rung["steps"] for rung in batch.rungs)
    assert batch.rungs[-1]["solver"] == "cholesky"


def test_residuals_of_a_sample_set_end_at_the_retained_mean(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample_set(settings, database, rungs=["newton"])
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    batch = batch_of(database)
    assert batch.status == "published"
    assert batch.trace is not None
    (step,) = batch.trace["residuals"]
    assert (step["rung"], step["step"]) == ("newton", 1)
    assert step["residual"] < 1e-9


def test_a_failed_job_keeps_its_trace(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database, epsilon=1e-40, rungs=["influence", "newton"])
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    batch = batch_of(database)
    assert (batch.status, batch.phase, batch.device) == ("failed", "publishing", "cpu")
    assert batch.trace is not None
    assert {step["rung"] for step in batch.trace["residuals"]} == {"influence", "newton"}
