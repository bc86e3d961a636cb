"""Schemas of jobs: the batches in which workers forget, and refreshes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.store.batches.listing import JobView
from service.store.states import RefreshStatus as JobStatus
from service.store.tables import Batch, now


class JobOut(BaseModel):
    id: uuid.UUID
    kind: Literal["forget", "refresh"] = Field(
        description="`forget`: a batch of deletions. `refresh`: chains of a sample set continued by an idle worker."
    )
    model_id: uuid.UUID
    status: JobStatus
    worker: str | None = Field(description="Worker that claimed it last; null for a refresh that nobody has claimed.")
    lease_expires_at: datetime | None = Field(
        description="When another worker may take over; null once the job has ended."
    )
    phase: str = Field(
        description="What the worker is doing, as of its last heartbeat (one per second); the last phase once ended."
    )
    percent: float
    started_at: datetime
    finished_at: datetime | None
    seconds: float = Field(description="Duration, so far or in total.")
    failure: str | None
    device: str | None = Field(default=None, description="Device used; null until it is known.")
    solver: str | None = Field(
        default=None, description="Linear solver of the last rung; null if it trained or sampled."
    )
    rungs: list[dict[str, Any]] | None = Field(
        default=None, description="Rungs tried, each with its bound and seconds. Null for a refresh."
    )
    deletion_count: int


class PhaseOut(BaseModel):
    phase: str
    seconds: float


class ResidualOut(BaseModel):
    rung: str
    step: int = Field(description="Step within the rung. Of training only the last step is reported.")
    residual: float | None = Field(
        description="‖∇F‖₂, the gradient of the energy over the retained records: zero at the reference. Null if it "
        "overflowed."
    )
    seconds: float = Field(description="Seconds since forgetting began.")


class JobDetail(JobOut):
    phases: list[PhaseOut] = Field(description="Phases in order, with their duration.")
    residuals: list[ResidualOut] = Field(
        description="Residual after each step. For a sample set each rung is one step, and the gradient is taken at "
        "the mean of the samples, whose sampling error keeps it above zero."
    )
    deletions: list[uuid.UUID] = Field(
        description="Deletions of the job, including those that a later job took over. The first 1000 by id."
    )


class JobPage(BaseModel):
    items: list[JobOut]
    next_cursor: str | None


def job_out(view: JobView) -> JobOut:
    work = view.work
    details = batch_details(work) if isinstance(work, Batch) else {}
    return JobOut(
        id=work.id,
        kind="forget" if isinstance(work, Batch) else "refresh",
        model_id=work.model_id,
        status=JobStatus(work.status),
        worker=work.worker,
        lease_expires_at=work.lease_expires_at if work.status == JobStatus.RUNNING else None,
        phase=work.phase,
        percent=work.percent,
        started_at=work.started_at,
        finished_at=work.finished_at,
        seconds=((work.finished_at or now()) - work.started_at).total_seconds(),
        failure=work.failure,
        deletion_count=view.deletion_count,
        **details,
    )


def batch_details(batch: Batch) -> dict[str, Any]:
    """Return what only a batch has."""
    solver = batch.rungs[-1].get("solver") if batch.rungs else None
    return {"device": batch.device, "rungs": batch.rungs, "solver": solver}


def job_detail(view: JobView) -> JobDetail:
    trace = view.work.trace if isinstance(view.work, Batch) else None
    progress = trace or {"phases": [], "residuals": []}
    return JobDetail(**job_out(view).model_dump(), **progress, deletions=list(view.deletion_ids))
