"""Jobs: the batches in which workers forget."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.resources import ResourcesDep, allowed
from service.schemas.audit import JobDetail, JobPage, WindowQuery, cursor_of, job_detail, job_out
from service.store.access.tokens import Caller
from service.store.batches import listing as jobs
from service.store.batches.listing import JobFilter
from service.store.states import BatchStatus, Role

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

JobReader = Annotated[Caller, Depends(allowed(Role.OPERATOR, Role.AUDITOR))]


@router.get("", response_model=JobPage, summary="The jobs, newest first")
def list_jobs(
    caller: JobReader,
    resources: ResourcesDep,
    window: WindowQuery,
    status: Annotated[list[BatchStatus], Query(max_length=len(BatchStatus), description="Any of these.")] = [],  # noqa: B006
    model: uuid.UUID | None = None,
) -> JobPage:
    """A job is a batch: all deletions of one model that one worker removes together."""
    with resources.database.reading() as session:
        found = jobs.page(session, JobFilter(status, model), window)
    return JobPage(items=[job_out(view) for view in found.items], next_cursor=cursor_of(found))


@router.get("/{job_id}", response_model=JobDetail, summary="One job")
def read_job(job_id: uuid.UUID, caller: JobReader, resources: ResourcesDep) -> JobDetail:
    """Its lease, how far it is, the seconds of each phase, the residual after each step, and which deletions it took.

    While it runs, all of this is as of the worker's last heartbeat.
    """
    with resources.database.reading() as session:
        return job_detail(jobs.find(session, job_id))
