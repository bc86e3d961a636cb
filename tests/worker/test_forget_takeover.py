"""Workers that die or fall behind: another one takes over, and the late one cannot publish, for any clock skew."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.batches.due import models_to_ring
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.models.registry import current_version
from service.store.tables import Artifact, Batch, Certificate, DeletionTarget, Version, now
from tests import samples
from tests.skewed_clock import skew_clock
from tests.waiting import wait_until
from tests.worker.processes import start_forgetting
from worker.context import WorkerContext
from worker.forget import forget_pending

TEN_MINUTES = 600.0


def with_short_lease(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_seconds": 1.0})


@pytest.mark.slow
def test_a_late_worker_with_another_clock_cannot_publish(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is ten minutes slow and its heartbeat fails; the clock of its successor is ten minutes fast."""
    model_id = samples.register_sample(settings, database)
    deletion_ids = [samples.request_deletion(settings, database, 1).deletion.id]
    with database.writing() as session:  # due by every clock
        session.execute(update(DeletionTarget).values(not_before=now() - timedelta(hours=1)))
    patch = (
        "worker.forget._process = report_and_wait(worker.forget._process); worker.lease.Lease._beat = lambda self: None"
    )
    with start_forgetting(with_short_lease(settings), model_id, patch, skew_seconds=-TEN_MINUTES) as late:
        assert late.stdout is not None
        assert "waiting\n" in iter(late.stdout.readline, "")
        with database.reading() as session:
            late_digests = set(session.scalars(select(Artifact.digest).where(Artifact.destroy_at.is_not(None))))
        assert len(late_digests) == 2  # both files of its version are written
        deletion_ids.append(samples.request_deletion(settings, database, 2).deletion.id)
        skew_clock(monkeypatch, timedelta(seconds=TEN_MINUTES))
        wait_until(lambda: forget_pending(context, model_id), "the lease expired, by the clock of the database")
        output, errors = late.communicate("go on\n", timeout=60)
    assert (late.returncode, "batch.lost" in output) == (0, True), errors
    with database.writing() as session:
        assert sorted(session.scalars(select(Certificate.deletion_id))) == sorted(deletion_ids)
        assert [find_view(session, deletion_id, caller=None).deletion.status for deletion_id in deletion_ids] == [
            "completed"
        ] * 2
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        assert [(version.number, version.record_count) for version in versions] == [(1, 40), (2, 32)]
        assert sorted(session.scalars(select(Batch.status))) == ["abandoned", "published"]
        current = {versions[1].posterior_digest, versions[1].dataset_digest}
        assert not late_digests & current
        adopted = set(session.scalars(select(Artifact.digest).where(Artifact.destroy_at.is_(None))))
        assert adopted == current
    assert {path.name for path in (settings.artifact_dir / str(model_id)).iterdir()} == current


@pytest.mark.slow
def test_the_batch_of_a_killed_worker_continues_after_its_lease(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """Nothing else touches the database in between: the sweep finds the batch."""
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    with start_forgetting(with_short_lease(settings), model_id, "worker.forget.publish = die") as dying:
        _, errors = dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL, errors

    def would_ring() -> bool:
        with database.reading() as session:
            return list(models_to_ring(session)) == [model_id]

    wait_until(would_ring, "the sweep would ring", timeout=10)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
        assert current_version(session, model_id).number == 2
