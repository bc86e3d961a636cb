"""What goes over the wire for jobs, bounds, versions and lists of models; and the cursors of their pages."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from service.schemas import ModelOut
from service.store.bounds import Bound, ModelBounds
from service.store.jobs import JobView
from service.store.models import VersionView
from service.store.paging import Page, Position, Window
from service.store.tables import BatchStatus, now

Level = Literal["estimated", "proved", "retrained"]


def to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is outside the years 1 to 9999") from None


Moment = Annotated[AwareDatetime, AfterValidator(to_utc)]


class JobOut(BaseModel):
    id: uuid.UUID
    model_id: uuid.UUID
    status: BatchStatus
    worker: str
    lease_expires_at: datetime | None = Field(description="When another worker may take over; null once it ended.")
    phase: str = Field(description="As of the worker's last heartbeat; a short job ends before its first.")
    percent: float
    started_at: datetime
    finished_at: datetime | None
    seconds: float = Field(description="How long it took, or has taken so far.")
    failure: str | None
    device: str | None = Field(description="Where it computed; null until it is known.")
    rungs: list[dict[str, Any]] | None = Field(description="What was tried, with the bound reached and the seconds.")
    deletion_count: int


class JobDetail(JobOut):
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
    epsilon: float = Field(description="KL(published ‖ reference) in nats is at most this.")
    epsilon_reverse: float | None = Field(description="The other direction; null where it is not computed.")
    level: str
    interval: tuple[float, float] | None = Field(description="Of an estimate, with 95 % confidence.")
    rung: str = Field(description="The one whose result was published.")
    solver: str | None
    records_before: int
    records_after: int
    policy: dict[str, Any] = Field(description="As it was when the certificate was issued.")
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


def cursor_of(page: Page[Any]) -> str | None:
    return page.end.encode() if page.end else None


def _ours(cursor: str) -> str:
    return Position.decode(cursor).encode()


Cursor = Annotated[str, AfterValidator(_ours), Query(max_length=64, description="`next_cursor` of the page before.")]


def window(limit: Annotated[int, Query(ge=1, le=200)] = 50, cursor: Cursor | None = None) -> Window:
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
        rungs=batch.rungs,
        deletion_count=view.deletion_count,
    )


def job_detail(view: JobView) -> JobDetail:
    return JobDetail(**job_out(view).model_dump(), deletions=list(view.deletion_ids))


def version_out(view: VersionView) -> VersionOut:
    version = view.version
    return VersionOut(
        number=version.number,
        posterior_sha256=version.posterior_digest,
        dataset_sha256=version.dataset_digest,
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
