from __future__ import annotations

import uuid
from datetime import timedelta

from service.schemas.jobs import job_detail, job_out
from service.store.batches.listing import JobView
from service.store.states import BatchStatus, RefreshStatus
from service.store.tables import Batch, Refresh, now


def view(status: BatchStatus, **columns: object) -> JobView:
    started_at = now() - timedelta(seconds=60)
    batch = Batch(
        id=uuid.uuid4(),
        model_id=uuid.uuid4(),
        status=status,
        worker="worker-1",
        lease_expires_at=now(),
        phase="newton",
        percent=50.0,
        started_at=started_at,
        **columns,
    )
    return JobView(batch, deletion_count=2, deletion_ids=[uuid.uuid4(), uuid.uuid4()])


def test_a_running_job_has_a_lease_and_counts_its_seconds() -> None:
    job = job_out(view(BatchStatus.RUNNING))
    assert job.lease_expires_at is not None
    assert 60 <= job.seconds < 70
    assert (job.solver, job.rungs) == (None, None)


def test_an_ended_job_has_no_lease_and_the_solver_of_its_last_rung() -> None:
    rungs = [{"name": "influence", "solver": "cg"}, {"name": "newton", "solver": "cholesky"}]
    ended = view(BatchStatus.PUBLISHED, rungs=rungs)
    ended.work.finished_at = ended.work.started_at + timedelta(seconds=5)
    job = job_out(ended)
    assert (job.lease_expires_at, job.seconds, job.solver) == (None, 5.0, "cholesky")


def test_the_detail_adds_the_trace_and_the_deletions() -> None:
    plain = view(BatchStatus.RUNNING)
    assert (job_detail(plain).phases, job_detail(plain).deletions) == ([], list(plain.deletion_ids))
    trace = {"phases": [{"phase": "loading", "seconds": 0.5}], "residuals": []}
    assert job_detail(view(BatchStatus.RUNNING, trace=trace)).phases[0].phase == "loading"


def test_a_refresh_is_a_job_without_deletions() -> None:
    refresh = Refresh(
        id=uuid.uuid4(),
        model_id=uuid.uuid4(),
        status=RefreshStatus.WAITING,
        phase="sampling",
        percent=40.0,
        started_at=now() - timedelta(minutes=1),
    )
    job = job_detail(JobView(refresh))
    assert (job.kind, job.status, job.phase, job.percent) == ("refresh", "waiting", "sampling", 40.0)
    assert (job.worker, job.lease_expires_at, job.rungs, job.deletions) == (None, None, None, [])
    assert job_out(view(BatchStatus.RUNNING)).kind == "forget"
