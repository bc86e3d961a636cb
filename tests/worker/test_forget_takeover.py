"""Workers that die or fall behind: another one goes on, and the late one cannot publish, whatever the clocks say."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store import clock
from service.store.artifacts.store import destroy_due
from service.store.batches import lifecycle, publication
from service.store.batches.due import models_to_ring
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.models.registry import current_version
from service.store.tables import Artifact, Batch, Certificate, DeletionTarget, Version, now
from tests import samples
from tests.waiting import wait_until
from tests.worker.processes import start_forgetting
from worker.context import WorkerContext
from worker.forget import forget_pending

TEN_MINUTES = 600.0


def hurried(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_seconds": 1.0})


@pytest.mark.slow
def test_a_late_worker_with_another_clock_cannot_publish(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ten minutes behind and its heartbeat does not get through; whoever takes over is ten minutes ahead."""
    model_id = samples.register_sample(settings, database)
    asked = [samples.request_deletion(settings, database, 1).deletion.id]
    with database.writing() as session:  # due by every clock
        session.execute(update(DeletionTarget).values(not_before=now() - timedelta(hours=1)))
    patch = (
        "worker.forget._process = tell_and_wait(worker.forget._process); worker.lease.Lease._beat = lambda self: None"
    )
    with start_forgetting(hurried(settings), model_id, patch, skew_seconds=-TEN_MINUTES) as late:
        assert late.stdout is not None
        assert "waiting\n" in iter(late.stdout.readline, "")
        with database.reading() as session:
            of_late = set(session.scalars(select(Artifact.digest).where(Artifact.destroy_at.is_not(None))))
        assert len(of_late) == 2  # both files of its version are written
        asked.append(samples.request_deletion(settings, database, 2).deletion.id)
        for module in (lifecycle, clock, publication):
            monkeypatch.setattr(module, "now", lambda: now() + timedelta(seconds=TEN_MINUTES))
        wait_until(lambda: forget_pending(context, model_id), "the lease ran out, by the clock that counts")
        told, errors = late.communicate("go on\n", timeout=60)
    assert (late.returncode, "batch.lost" in told) == (0, True), errors
    with database.writing() as session:
        assert sorted(session.scalars(select(Certificate.deletion_id))) == sorted(asked)
        assert [find_view(session, one, caller=None).deletion.status for one in asked] == ["completed"] * 2
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        assert [(version.number, version.record_count) for version in versions] == [(1, 40), (2, 32)]
        assert sorted(session.scalars(select(Batch.status))) == ["abandoned", "published"]
        current = {versions[1].posterior_digest, versions[1].dataset_digest}
        assert not of_late & current
        adopted = set(session.scalars(select(Artifact.digest).where(Artifact.destroy_at.is_(None))))
        assert adopted == current
        session.execute(update(Artifact).where(Artifact.destroy_at.is_not(None)).values(destroy_at=now()))
    destroy_due(database, context.artifacts)
    assert {path.name for path in (settings.artifact_dir / str(model_id)).iterdir()} == current


@pytest.mark.slow
def test_a_killed_workers_batch_goes_on_when_its_lease_has_run_out(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """Nobody touches the database in between: the sweep's own look finds it."""
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    with start_forgetting(hurried(settings), model_id, "worker.forget.publish = die") as dying:
        _, told = dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL, told

    def rung_for() -> bool:
        with database.reading() as session:
            return list(models_to_ring(session)) == [model_id]

    wait_until(rung_for, "the sweep would ring", timeout=10)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
        assert current_version(session, model_id).number == 2
