"""Jobs: the batches in which workers forget, and refreshes."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.resources import ResourcesDep, require_role
from service.schemas.fields import Uuid
from service.schemas.jobs import JobDetail, JobPage, job_detail, job_out
from service.schemas.paging import WindowQuery, next_cursor
from service.store.access.tokens import Caller
from service.store.batches import listing
from service.store.batches.listing import JobFilter
from service.store.states import RefreshStatus, Role

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

JobReader = Annotated[Caller, Depends(require_role(Role.OPERATOR, Role.AUDITOR))]


@router.get("", response_model=JobPage, summary="List jobs")
def list_jobs(
    caller: JobReader,
    resources: ResourcesDep,
    window: WindowQuery,
    status: Annotated[list[RefreshStatus], Query(max_length=len(RefreshStatus), description="Any of these.")] = [],  # noqa: B006
    model: Uuid | None = None,
) -> JobPage:
    """A job is a batch, the deletions of one model that a worker processes together, or a refresh. Newest first."""
    with resources.database.reading() as session:
        page = listing.find_job_page(session, JobFilter(status, model), window)
    return JobPage(items=[job_out(view) for view in page.items], next_cursor=next_cursor(page))


@router.get("/{job_id}", response_model=JobDetail, summary="Read a job")
def read_job(job_id: uuid.UUID, caller: JobReader, resources: ResourcesDep) -> JobDetail:
    """Lease, progress, seconds of each phase, residual after each step, and its deletions.

    While it runs, all values are as of the worker's last heartbeat.
    """
    with resources.database.reading() as session:
        return job_detail(listing.find_job(session, job_id))
