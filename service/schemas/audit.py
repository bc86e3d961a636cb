"""What goes over the wire for jobs, bounds, versions and lists of models; and the cursors of their pages."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import date, datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from service.schemas.deletions import Cursor
from service.schemas.models import DatasetRoot, ModelOut
from service.store.batches.listing import JobView
from service.store.certificates.listing import Bound, ModelBounds
from service.store.deletions.summaries import Summary
from service.store.models.registry import VersionView
from service.store.paging import Page, Position, Window
from service.store.states import BatchStatus
from service.store.tables import now


class JobOut(BaseModel):
    id: uuid.UUID
    model_id: uuid.UUID
    status: BatchStatus
    worker: str
    lease_expires_at: datetime | None = Field(description="When another worker may take over; null once it ended.")
    phase: str = Field(
        description="What the worker is doing, as of its last heartbeat (once a second); at its end, what it did last."
    )
    percent: float
    started_at: datetime
    finished_at: datetime | None
    seconds: float = Field(description="How long it took, or has taken so far.")
    failure: str | None
    device: str | None = Field(description="Where it computed; null until it is known.")
    solver: str | None = Field(description="How the last rung solved for its step; null where it trained or sampled.")
    rungs: list[dict[str, Any]] | None = Field(description="What was tried, with the bound reached and the seconds.")
    deletion_count: int


class PhaseOut(BaseModel):
    phase: str
    seconds: float


class ResidualOut(BaseModel):
    rung: str
    step: int = Field(description="Within its rung. Training is not seen step by step: of it this is the last.")
    residual: float | None = Field(
        description="‖∇F‖₂, the gradient of the energy over what is retained: zero at the reference. Null if it "
        "overflowed."
    )
    seconds: float = Field(description="Since forgetting began.")


class JobDetail(JobOut):
    phases: list[PhaseOut] = Field(description="What the worker did, in order, and how long it took.")
    residuals: list[ResidualOut] = Field(
        description="How near each step came. A sample set moves at once: each rung is one step, and the gradient that "
        "at the mean of its samples, which the error of such a mean keeps from zero."
    )
    deletions: list[uuid.UUID] = Field(
        description="Which deletions it took, also those that a later job took over. The first 1000 by id."
    )


class JobPage(BaseModel):
    items: list[JobOut]
    next_cursor: str | None


class ModelPage(BaseModel):
    items: list[ModelOut]
    next_cursor: str | None


class VersionOut(BaseModel):
    number: int
    posterior_sha256: str
    dataset_sha256: str
    dataset_root: DatasetRoot
    record_count: int
    readiness: dict[str, Any] | None
    created_at: datetime
    superseded_at: datetime | None = Field(description="Null for the current version.")
    posterior_destroyed_at: datetime | None = Field(description="Null as long as the file exists.")


class VersionPage(BaseModel):
    items: list[VersionOut]
    next_cursor: str | None


class BoundOut(BaseModel):
    certificate_id: uuid.UUID
    deletion_id: uuid.UUID
    model_id: uuid.UUID
    epsilon: float = Field(
        description="KL(published ‖ reference) in nats is at most this; of an estimate, its interval's upper end. Of "
        "an estimated network it is the excess of a divergence: the certificate's `direction` says of which."
    )
    epsilon_reverse: float | None = Field(description="The other direction; null where it is not computed.")
    level: str
    interval: tuple[float, float] | None = Field(description="Of an estimate, with 95 % confidence.")
    rung: str = Field(description="The one whose result was published.")
    solver: str | None
    records_before: int
    records_after: int
    policy: dict[str, Any] = Field(
        description="What the job had to meet: the strictest of the model's policy and those frozen at receipt."
    )
    received_at: datetime
    issued_at: datetime


class BoundPage(BaseModel):
    items: list[BoundOut]
    next_cursor: str | None


class ModelBoundsOut(BaseModel):
    model_id: uuid.UUID
    name: str
    count: int = Field(description="Certificates issued for it.")
    worst_epsilon: float | None
    median_epsilon: float | None
    levels: dict[str, int] = Field(description="How many certificates at each level.", examples=[{"proved": 12}])
    latest_issued_at: datetime | None


class ModelBoundsPage(BaseModel):
    items: list[ModelBoundsOut]
    next_cursor: str | None


class SummaryCounts(BaseModel):
    received: int
    completed: int
    failed: int = Field(description="Given up, and waiting for somebody to retry them.")
    overdue: int
    due_soon: int = Field(description="Due within 7 days.")


class SummaryOut(BaseModel):
    day: date = Field(description="In UTC.")
    since: datetime = Field(
        description="From here to the end of the day `received` and `completed` count: more than a day only if no "
        "sweep ran on the day before."
    )
    written_at: datetime = Field(description="The moment at which `failed`, `overdue` and `due_soon` were counted.")
    regulations: dict[str, SummaryCounts] = Field(
        examples=[{"gdpr": {"received": 12, "completed": 11, "failed": 0, "overdue": 0, "due_soon": 1}}]
    )


class SummaryPage(BaseModel):
    items: list[SummaryOut] = Field(description="The newest day first.")


def cursor_of(page: Page[Any]) -> str | None:
    return page.end.encode() if page.end else None


def window(
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[Cursor | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Window:
    return Window(limit, Position.decode(cursor) if cursor else None)


WindowQuery = Annotated[Window, Depends(window)]


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


def version_out(view: VersionView) -> VersionOut:
    version = view.version
    return VersionOut(
        number=version.number,
        posterior_sha256=version.posterior_digest,
        dataset_sha256=version.dataset_digest,
        dataset_root=version.dataset_root,
        record_count=version.record_count,
        readiness=version.readiness,
        created_at=version.created_at,
        superseded_at=version.superseded_at,
        posterior_destroyed_at=view.posterior.destroyed_at,
    )


def bound_out(bound: Bound) -> BoundOut:
    certificate, signed = bound.certificate, bound.predicate
    stated = signed["bound"]
    return BoundOut(
        certificate_id=certificate.id,
        deletion_id=certificate.deletion_id,
        model_id=certificate.model_id,
        epsilon=certificate.epsilon,
        epsilon_reverse=stated.get("epsilon_reverse"),
        level=certificate.level,
        interval=stated.get("interval"),
        rung=bound.last_rung["name"],
        solver=bound.last_rung.get("solver"),
        records_before=signed["records"]["before"],
        records_after=signed["records"]["after"],
        policy=signed["policy"],
        received_at=bound.received_at,
        issued_at=certificate.issued_at,
    )


def model_bounds_out(bounds: ModelBounds) -> ModelBoundsOut:
    return ModelBoundsOut(
        model_id=bounds.model_id,
        name=bounds.name,
        count=bounds.count,
        worst_epsilon=bounds.worst_epsilon,
        median_epsilon=bounds.median_epsilon,
        levels=dict(bounds.levels),
        latest_issued_at=bounds.latest_issued_at,
    )


def summary_out(summary: Summary) -> SummaryOut:
    return SummaryOut.model_validate(asdict(summary))
