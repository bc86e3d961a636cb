"""Schemas of jobs: the batches in which workers forget."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from service.store.batches.listing import JobView
from service.store.states import BatchStatus
from service.store.tables import now


class JobOut(BaseModel):
    id: uuid.UUID
    model_id: uuid.UUID
    status: BatchStatus
    worker: str
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
    device: str | None = Field(description="Device used; null until it is known.")
    solver: str | None = Field(description="Linear solver of the last rung; null if it trained or sampled.")
    rungs: list[dict[str, Any]] | None = Field(description="Rungs tried, each with its bound and seconds.")
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
    batch = view.batch
    running = batch.status == BatchStatus.RUNNING
    return JobOut(
        id=batch.id,
        model_id=batch.model_id,
        status=BatchStatus(batch.status),
        worker=batch.worker,
        lease_expires_at=batch.lease_expires_at if running else None,
        phase=batch.phase,
        percent=batch.percent,
        started_at=batch.started_at,
        finished_at=batch.finished_at,
        seconds=((batch.finished_at or now()) - batch.started_at).total_seconds(),
        failure=batch.failure,
        device=batch.device,
        solver=batch.rungs[-1].get("solver") if batch.rungs else None,
        rungs=batch.rungs,
        deletion_count=view.deletion_count,
    )


def job_detail(view: JobView) -> JobDetail:
    trace = view.batch.trace or {"phases": [], "residuals": []}
    return JobDetail(**job_out(view).model_dump(), **trace, deletions=list(view.deletion_ids))
