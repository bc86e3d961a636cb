from __future__ import annotations

import uuid

import pytest

from service.settings import Settings
from service.store.batches import listing
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch
from service.store.batches.listing import JobFilter, find_job, find_job_page
from service.store.database import Database
from service.store.errors import NotFound
from service.store.paging import Window
from service.store.states import BatchStatus, RefreshStatus
from tests import samples
from tests.service.store.refreshes.worn import claim as claim_refresh
from tests.service.store.refreshes.worn import worn_model

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


def claim(database: Database, model_id: uuid.UUID) -> Claim:
    with database.writing() as session:
        claimed = claim_batch(session, model_id, "worker", TERMS)
    assert claimed is not None
    return claimed


def fail(database: Database, claimed: Claim) -> None:
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "it broke", permanent=True, max_attempts=3)


def batch_ids(database: Database, criteria: JobFilter) -> list[uuid.UUID]:
    with database.reading() as session:
        return [view.work.id for view in find_job_page(session, criteria, Window(10)).items]


def test_a_job_lists_its_deletions_also_after_another_batch_claimed_them(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_ids = sorted(samples.request_deletion(settings, database, number).deletion.id for number in range(3))
    first = claim(database, model_id)
    fail(database, first)  # they continue in batches of two
    second = claim(database, model_id)
    with database.reading() as session:
        job = find_job(session, first.batch_id)
        assert (job.work.status, job.deletion_count, job.deletion_ids) == ("failed", 3, deletion_ids)
        counts = {view.work.id: view.deletion_count for view in find_job_page(session, JobFilter(), Window(10)).items}
        assert counts == {first.batch_id: 3, second.batch_id: 2}
        monkeypatch.setattr(listing, "MOST_DELETIONS_SHOWN", 2)
        job = find_job(session, first.batch_id)
        assert (job.deletion_count, job.deletion_ids) == (3, deletion_ids[:2])


def test_jobs_are_filtered_by_status_and_model(settings: Settings, database: Database) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(2)]
    samples.request_deletion(settings, database, 1)
    failed, running = (claim(database, model_id).batch_id for model_id in model_ids)
    with database.writing() as session:
        fail_batch(session, failed, "it broke", permanent=True, max_attempts=3)
    assert batch_ids(database, JobFilter()) == [running, failed]
    assert batch_ids(database, JobFilter([BatchStatus.FAILED])) == [failed]
    assert batch_ids(database, JobFilter([BatchStatus.FAILED, BatchStatus.RUNNING])) == [running, failed]
    assert batch_ids(database, JobFilter(model_id=model_ids[1])) == [running]
    assert batch_ids(database, JobFilter([BatchStatus.FAILED], model_ids[1])) == []


def test_jobs_are_paged(settings: Settings, database: Database) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(3)]
    samples.request_deletion(settings, database, 1)
    claimed = [claim(database, model_id).batch_id for model_id in model_ids]
    with database.reading() as session:
        first = find_job_page(session, JobFilter(), Window(2))
        second = find_job_page(session, JobFilter(), Window(2, first.end))
    assert [view.work.id for view in (*first.items, *second.items)] == claimed[::-1]
    assert (len(first.items), second.end) == (2, None)


def test_an_unknown_job_is_not_found(database: Database) -> None:
    with database.reading() as session, pytest.raises(NotFound, match="GET /api/v1/jobs"):
        find_job(session, uuid.uuid4())


def test_refreshes_are_listed_between_batches(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    refresh_id = claim_refresh(database, model_id).refresh_id
    samples.request_deletion(settings, database, 1)
    batch_id = claim(database, model_id).batch_id  # ends the refresh
    assert batch_ids(database, JobFilter()) == [batch_id, refresh_id]
    assert batch_ids(database, JobFilter([RefreshStatus.ABANDONED])) == [refresh_id]
    assert batch_ids(database, JobFilter(model_id=uuid.uuid4())) == []
    with database.reading() as session:
        first = find_job_page(session, JobFilter(), Window(1))
        second = find_job_page(session, JobFilter(), Window(1, first.end))
        assert find_job(session, refresh_id).deletion_ids == ()
    assert [view.work.id for view in (*first.items, *second.items)] == [batch_id, refresh_id]
    assert second.end is None
