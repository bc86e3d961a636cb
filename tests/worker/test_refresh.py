"""A refresh from claim to publication, compared with the closed form: a mixture of one component is conjugate."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from safetensors.numpy import load
from sqlalchemy import select, update

from ml.errors import NumericalFailure
from ml.inference.refreshing import continue_refresh
from ml.posteriors.sample_set import SampleSet
from service.settings import Settings
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.states import RefreshStatus
from service.store.tables import Artifact, AuditEntry, DeletionTarget, Refresh, now
from tests import samples
from tests.faults.fork_client import environment
from tests.waiting import wait_until
from tests.worker.refreshes import NEVER, act_at, actions_of, current, only_refresh, quick_chains  # noqa: F401
from worker import refresh
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.loading import LoadedModel
from worker.readiness import check_current
from worker.refresh import refresh_worn

pytestmark = pytest.mark.usefixtures("quick_chains")

DRAWS, BURN_IN, TUNING = samples.WORN_DRAWS, 20, 10


def worn_model(settings: Settings, context: WorkerContext) -> uuid.UUID:
    model_id = samples.register_worn_set(settings, context.database)
    check_current(context, model_id)
    return model_id


def files(settings: Settings, model_id: uuid.UUID) -> set[str]:
    return {path.name for path in (settings.artifact_dir / str(model_id)).iterdir()}


def checkpoints(database: Database) -> list[Artifact]:
    with database.reading() as session:
        return list(session.scalars(select(Artifact).where(Artifact.kind == "checkpoint")))


def test_worn_draws_are_drawn_anew_on_the_same_records(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = worn_model(settings, context)
    before = current(database, model_id)
    assert before.draws == DRAWS
    assert before.effective_draws is not None
    assert before.effective_draws < 0.8 * DRAWS
    assert refresh_worn(context, model_id) is True
    after = current(database, model_id)
    assert (after.number, after.draws, after.effective_draws) == (2, DRAWS, DRAWS)
    assert (after.dataset_digest, after.record_count) == (before.dataset_digest, before.record_count)
    assert after.dataset_root == before.dataset_root
    assert after.readiness is not None
    assert after.readiness["levels"] == before.readiness["levels"] == ["estimated"]  # type: ignore[index]
    posterior = load(context.artifacts.get(model_id, after.posterior_digest))
    assert set(posterior) == {"samples", "chain"}  # the weights, which know the forgotten rows, are gone
    precision = len(samples.points()) + 1.0
    truth = samples.points().sum(0) / precision
    assert np.allclose(posterior["samples"].mean(0), truth, atol=5 / (DRAWS * precision) ** 0.5)
    assert np.allclose(posterior["samples"].std(0), precision**-0.5, rtol=0.2)
    # Neither the worn draws nor a checkpoint is left.
    assert files(settings, model_id) == {after.posterior_digest, after.dataset_digest}
    assert refresh_worn(context, model_id) is False


def test_the_log_names_both_posteriors(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = worn_model(settings, context)
    before = current(database, model_id)
    refresh_worn(context, model_id)
    after, finished = current(database, model_id), only_refresh(database)
    with database.reading() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "version.refreshed"))
    assert (entry.actor, entry.concerns) == (context.name, str(model_id))
    assert entry.details == {
        "refresh": str(finished.id),
        "version": 2,
        "posterior": after.posterior_digest,
        "replaced_posterior": before.posterior_digest,
        "dataset": after.dataset_digest,
        "draws": DRAWS,
        "effective_draws": DRAWS,
        "effective_draws_before": before.effective_draws,
    }
    assert (finished.status, finished.phase, finished.percent) == ("published", "published", 100)
    assert actions_of(database, "refresh.") == ["refresh.claimed"]


def test_a_deletion_after_a_refresh_is_certified_from_its_draws(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = worn_model(settings, context)
    refresh_worn(context, model_id)
    view = samples.request_deletion(settings, database, 1)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
    version = current(database, model_id)
    assert version.number == 3
    assert version.draws == DRAWS
    assert version.effective_draws is not None
    assert 0 < version.effective_draws <= DRAWS + 1e-9


def test_nothing_starts_with_even_draws_or_a_floor_of_zero(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    even = samples.register_sample_set(settings, database)
    check_current(context, even)
    assert refresh_worn(context, even) is False
    worn = worn_model(settings, context)
    switched_off = replace(context, settings=settings.model_copy(update={"refresh_below": 0.0}))
    assert refresh_worn(switched_off, worn) is False
    assert refresh_worn(context, uuid.uuid4()) is False
    with database.reading() as session:
        assert session.scalars(select(Refresh)).all() == []


@pytest.mark.parametrize("iteration", [10, 50])
def test_a_refresh_ends_when_a_deletion_of_its_model_is_due(
    settings: Settings,
    database: Database,
    context: WorkerContext,
    monkeypatch: pytest.MonkeyPatch,
    iteration: int,
) -> None:
    model_id = worn_model(settings, context)

    def delete_somebody() -> None:
        samples.request_deletion(settings, database, 2)
        wait_until(lambda: only_refresh(database).finished_at, "the refresh gave way")

    states = act_at(monkeypatch, iteration, delete_somebody)
    assert refresh_worn(context, model_id) is True
    assert len(states) <= iteration + 1
    abandoned = only_refresh(database)
    assert (abandoned.status, abandoned.claim_id) == (RefreshStatus.ABANDONED, None)
    # The states of the chains knew the person who is forgotten next.
    assert checkpoints(database)
    assert all(checkpoint.destroyed_at for checkpoint in checkpoints(database))
    version = current(database, model_id)
    assert (version.number, files(settings, model_id)) == (1, {version.posterior_digest, version.dataset_digest})
    assert refresh_worn(context, model_id) is False  # the deletion comes first
    assert forget_pending(context, model_id) is True


def test_a_batch_ends_a_refresh_whose_worker_is_stuck(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence: a worker without a heartbeat can neither write nor publish once the deletion was claimed."""
    model_id = worn_model(settings, context)

    def delete_and_forget() -> None:
        samples.request_deletion(settings, database, 2)
        assert forget_pending(context, model_id) is True

    states = act_at(monkeypatch, 30, delete_and_forget)
    monkeypatch.setattr("worker.refresh_lease.RefreshLease._beat", lambda lease: None)
    assert refresh_worn(context, model_id) is True
    assert states[-1].done  # it computed all of its draws in vain
    version = current(database, model_id)
    assert (version.number, version.record_count) == (2, len(samples.points()) - 4)
    assert only_refresh(database).status == "abandoned"
    assert files(settings, model_id) == {version.posterior_digest, version.dataset_digest}
    assert "version.refreshed" not in actions_of(database, "version.")


def test_a_refresh_is_released_for_another_model_and_continues_from_its_checkpoint(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = worn_model(settings, context)
    other_id = samples.register_sample(settings, database)

    def wait_unserved() -> None:
        view = samples.request_deletion(settings, database, 1, model_ids=[other_id])
        with database.writing() as session:  # no worker was idle for a while
            target = session.get_one(DeletionTarget, (view.deletion.id, other_id))
            target.not_before = now() - timedelta(seconds=10)
        wait_until(lambda: only_refresh(database).status == RefreshStatus.WAITING, "the refresh was released")

    act_at(monkeypatch, BURN_IN + 30, wait_unserved)
    assert refresh_worn(context, model_id) is True
    released = only_refresh(database)
    assert released.checkpoint_digest in files(settings, model_id)
    assert refresh_worn(context, model_id) is False  # the other model's deletion still waits
    assert forget_pending(context, other_id) is True
    states = act_at(monkeypatch, NEVER, lambda: None)
    assert refresh_worn(context, model_id) is True
    # Iterations of tuning and the remaining draws. The last checkpoint may be one behind.
    assert len(states[-1].draws) == DRAWS // 4
    assert len(states) in (TUNING + DRAWS // 4 - 30, TUNING + DRAWS // 4 - 29)
    assert only_refresh(database).status == "published"
    version = current(database, model_id)
    assert files(settings, model_id) == {version.posterior_digest, version.dataset_digest}
    assert actions_of(database, "refresh.") == ["refresh.claimed", "refresh.given_back", "refresh.claimed"]


KILLED = """
    import os, signal, uuid
    from ml.inference import refreshing
    from ml.inference.chains import Chains
    from ml.inference.hmc import HMC
    from service.settings import load_settings
    from worker import refresh
    from worker.context import WorkerContext

    original = refresh.continue_refresh
    refreshing.SAFE_HMC = Chains(HMC(steps=1, tuning=10), iterations=120, burn_in=20, preconditioned=True)

    def dying(*args):
        for number, state in enumerate(original(*args), 1):
            refresh.CHECKPOINT_SECONDS = 0.0 if number == 50 else 10.0
            yield state
            if number == 50:
                os.kill(os.getpid(), signal.SIGKILL)

    refresh.continue_refresh = dying
    refresh.refresh_worn(WorkerContext.open(load_settings()), uuid.UUID("{model_id}"))
"""


@pytest.mark.slow
def test_a_killed_workers_refresh_continues_from_its_checkpoint(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = worn_model(settings, context)
    script = textwrap.dedent(KILLED).format(model_id=model_id)
    env = {**environment(settings), "PATH": "/usr/bin:/bin", "LETHE_LEASE_SECONDS": "1"}
    killed = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stderr
    running = only_refresh(database)
    assert running.status == "running"
    assert running.checkpoint_digest in files(settings, model_id)
    states = act_at(monkeypatch, NEVER, lambda: None)
    wait_until(lambda: refresh_worn(context, model_id), "the lease expired, and the refresh continued")
    remaining = DRAWS // 4 - len(states[-1].draws) + len(states) - TUNING
    assert (len(states[-1].draws), remaining) == (DRAWS // 4, DRAWS // 4 - 30)
    finished = only_refresh(database)
    assert (finished.status, finished.crashes, finished.id) == ("published", 1, running.id)
    version = current(database, model_id)
    assert (version.number, files(settings, model_id)) == (2, {version.posterior_digest, version.dataset_digest})


def test_a_failed_refresh_says_why_and_waits(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = worn_model(settings, context)

    def explode() -> None:
        raise NumericalFailure("the chains exploded at iteration 5: shorten the steps")

    act_at(monkeypatch, 5, explode)
    assert refresh_worn(context, model_id) is True
    failed = only_refresh(database)
    assert (failed.status, failed.failure) == ("failed", "the chains exploded at iteration 5: shorten the steps")
    version = current(database, model_id)
    assert (version.number, files(settings, model_id)) == (1, {version.posterior_digest, version.dataset_digest})
    assert refresh_worn(context, model_id) is False  # not for ten minutes
    with database.writing() as session:
        session.execute(update(Refresh).values(finished_at=now() - timedelta(minutes=11)))
    monkeypatch.setattr(refresh, "continue_refresh", continue_refresh)
    assert refresh_worn(context, model_id) is True
    assert current(database, model_id).number == 2


def test_draws_that_fail_checks_which_those_before_passed_are_discarded(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = worn_model(settings, context)
    monkeypatch.setattr(refresh, "_sample", stuck_chains)
    assert refresh_worn(context, model_id) is True
    failed = only_refresh(database)
    assert failed.status == "failed"
    assert failed.failure is not None
    assert failed.failure.startswith("the draws before passed their checks, but the new ones do not")
    assert current(database, model_id).number == 1


def stuck_chains(_context: object, _claim: object, loaded: LoadedModel, _lease: object) -> SampleSet:
    """Return draws half as wide as they should be."""
    before = loaded.posterior
    assert isinstance(before, SampleSet)
    return SampleSet(before.mean + (before.samples - before.mean) / 2, before.chain)


def test_a_refresh_that_ran_for_as_long_as_a_task_may_is_continued(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = worn_model(settings, context)

    def stop() -> None:
        raise SoftTimeLimitExceeded

    act_at(monkeypatch, 30, stop)
    assert refresh_worn(context, model_id) is True
    waiting = only_refresh(database)
    assert (waiting.status, waiting.claim_id) == ("waiting", None)
    assert waiting.checkpoint_digest in files(settings, model_id)
