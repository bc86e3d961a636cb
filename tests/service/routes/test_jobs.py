from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import write_ahead
from service.store.batches.lifecycle import Claim, ClaimTerms, claim_batch, fail_batch, renew_lease
from service.store.batches.listing import MOST_DELETIONS_SHOWN
from service.store.batches.publication import BatchResult, publish
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree
from service.store.signing.keys import open_signer
from service.store.states import Role
from service.store.tables import Batch, now
from tests import samples
from tests.evidence import make_evidence
from tests.service.conftest import Api
from vocabulary.levels import CertifiedLevel

PATH = "/api/v1/jobs"
TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)
UNKNOWN = uuid.UUID("00000000-0000-4000-8000-000000000000")


def claim(database: Database, model_id: uuid.UUID) -> Claim:
    with database.writing() as session:
        claimed = claim_batch(session, model_id, "worker-1", TERMS)
    assert claimed is not None
    return claimed


def fail(database: Database, claimed: Claim) -> None:
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "disk full", permanent=True, max_attempts=3)


def publish_claim(
    settings: Settings,
    database: Database,
    claimed: Claim,
    epsilon: float = 1e-8,
    level: CertifiedLevel = "proved",
    **bound: object,
) -> uuid.UUID:
    """Publish as a worker would, with the given bound. Return the certificate of the batch's only deletion."""
    (certificate,) = publish_all(settings, database, claimed, epsilon, level, **bound)
    return certificate


def publish_all(
    settings: Settings,
    database: Database,
    claimed: Claim,
    epsilon: float = 1e-8,
    level: CertifiedLevel = "proved",
    **bound: object,
) -> Sequence[uuid.UUID]:
    artifacts = open_artifacts(settings)
    evidence = make_evidence(epsilon, level, **bound)
    dataset = load_dataset(artifacts.get(claimed.model_id, claimed.dataset_digest))
    retained = dataset.without(claimed.forgotten)
    content = {"posterior": [f"posterior of {claimed.batch_id}".encode()], "dataset": retained.pieces()}
    digests = [write_ahead(database, artifacts, claimed.model_id, kind, *pieces) for kind, pieces in content.items()]
    signer = open_signer(settings, database)
    with database.writing() as session:
        processed = BatchResult(
            *digests, DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(retained), "cpu", evidence
        )
        return publish(session, claimed, processed, signer, retention_seconds=0)


def publish_sample(
    settings: Settings,
    database: Database,
    model_id: uuid.UUID,
    person: int,
    epsilon: float = 1e-8,
    level: CertifiedLevel = "proved",
    **bound: object,
) -> uuid.UUID:
    samples.request_deletion(settings, database, person)
    return publish_claim(settings, database, claim(database, model_id), epsilon, level, **bound)


ROUTES = [("GET", PATH, 200), ("GET", f"{PATH}/{UNKNOWN}", 404)]


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_operators_and_auditors_only(api: Api, method: str, path: str, status: int) -> None:
    expected = {None: 401, Role.COMPLIANCE: 403, Role.ENGINEER: 403, Role.OPERATOR: status, Role.AUDITOR: status}
    assert {role: api.call(role, method, path).status_code for role in expected} == expected


def test_a_running_job_shows_its_lease_and_progress(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_ids = [samples.request_deletion(settings, database, number).deletion.id for number in (1, 2)]
    claimed = claim(database, model_id)
    with database.writing() as session:
        residual = {"rung": "influence", "step": 1, "residual": 0.5, "seconds": 0.25}
        trace = {"phases": [{"phase": "loading", "seconds": 0.1}], "residuals": [residual]}
        renew_lease(session, claimed.batch_id, 30, "newton", 50, "cuda:0", trace)
    job = api.call(Role.AUDITOR, "GET", f"{PATH}/{claimed.batch_id}").json()
    assert (job["id"], job["model_id"]) == (str(claimed.batch_id), str(model_id))
    assert (job["status"], job["worker"], job["phase"], job["percent"]) == ("running", "worker-1", "newton", 50)
    assert job["lease_expires_at"] > job["started_at"]
    assert job["lease_expires_at"].endswith("Z")
    assert (job["finished_at"], job["failure"], job["device"], job["rungs"]) == (None, None, "cuda:0", None)
    assert (job["phases"], job["residuals"]) == (trace["phases"], trace["residuals"])
    assert 0 <= job["seconds"] < 60
    assert job["deletions"] == sorted(map(str, deletion_ids))
    assert job["deletion_count"] == 2


def test_a_finished_job_shows_how_it_ran(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    claimed = claim(database, model_id)
    publish_claim(settings, database, claimed)
    started = now() - timedelta(hours=1)
    with database.writing() as session:
        session.execute(update(Batch).values(started_at=started, finished_at=started + timedelta(seconds=2.5)))
    job = api.call(Role.OPERATOR, "GET", f"{PATH}/{claimed.batch_id}").json()
    assert (job["status"], job["device"]) == ("published", "cpu")
    assert [rung["name"] for rung in job["rungs"]] == ["influence", "newton"]
    assert (job["phase"], job["percent"], job["solver"]) == ("published", 100, "cholesky")
    assert (job["phases"], job["residuals"]) == ([], [])  # no worker reported any
    assert (job["seconds"], job["lease_expires_at"]) == (2.5, None)


def test_an_abandoned_job_still_shows_its_deletions(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    late = claim(database, model_id)
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    taken = claim(database, model_id)
    for claimed, status in ((late, "abandoned"), (taken, "running")):
        job = api.call(Role.OPERATOR, "GET", f"{PATH}/{claimed.batch_id}").json()
        assert (job["status"], job["deletions"]) == (status, [str(deletion_id)])
    listed = api.call(Role.OPERATOR, "GET", PATH).json()["items"]
    assert [(job["id"], job["deletion_count"]) for job in listed] == [
        (str(taken.batch_id), 1),
        (str(late.batch_id), 1),
    ]
    assert "deletions" not in listed[0]


def test_the_deletions_of_a_huge_job_are_truncated(api: Api, settings: Settings, database: Database) -> None:
    from service.store import audit

    model_id, batch_id = samples.register_sample(settings, database), uuid.uuid4()
    held = [str(uuid.uuid4()) for _ in range(MOST_DELETIONS_SHOWN + 1)]
    with database.writing() as session:
        session.add(Batch(id=batch_id, model_id=model_id, status="running", worker="w", lease_expires_at=now()))
        audit.record(session, "w", "batch.claimed", batch_id, deletions=held)
    job = api.call(Role.OPERATOR, "GET", f"{PATH}/{batch_id}").json()
    assert job["deletion_count"] == len(held)
    assert job["deletions"] == sorted(held)[:MOST_DELETIONS_SHOWN]


def add_batches(database: Database, model_id: uuid.UUID, count: int) -> list[str]:
    """Add finished batches; return ids newest first. Every third starts with the previous one, so that ids decide."""
    start = now() - timedelta(days=1)
    rows = [
        Batch(
            id=uuid.uuid4(),
            model_id=model_id,
            status="failed" if number % 2 else "published",
            worker="w",
            lease_expires_at=start,
            started_at=start + timedelta(seconds=number - (number % 3 == 2)),
            finished_at=now(),
        )
        for number in range(count)
    ]
    with database.writing() as session:
        session.add_all(rows)
    return [str(row.id) for row in sorted(rows, key=lambda row: (row.started_at, row.id), reverse=True)]


def test_pages_follow_each_other_without_gap_or_repetition(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    expected = add_batches(database, model_id, 11)
    ids: list[str] = []
    cursor = None
    for size in (3, 3, 3, 2):  # each page ends between two jobs that started at once
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = api.call(Role.OPERATOR, "GET", PATH, params=query).json()
        assert len(page["items"]) == size
        ids += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert ids == expected


def test_new_jobs_do_not_shift_the_next_page(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    expected = add_batches(database, model_id, 6)
    first = api.call(Role.OPERATOR, "GET", PATH, params={"limit": 3}).json()
    samples.request_deletion(settings, database, 1)
    claim(database, model_id)
    second = api.call(Role.OPERATOR, "GET", PATH, params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in first["items"] + second["items"]] == expected


def test_filters(api: Api, settings: Settings, database: Database) -> None:
    first, second = (samples.register_sample(settings, database) for _ in range(2))
    add_batches(database, first, 5)
    add_batches(database, second, 2)
    counts = {
        "": 7,
        f"model={first}": 5,
        f"model={UNKNOWN}": 0,
        "status=failed": 3,
        "status=failed&status=published": 7,
        "status=running": 0,
        f"model={first}&status=published": 3,
    }
    lengths = {query: len(api.call(Role.OPERATOR, "GET", f"{PATH}?{query}").json()["items"]) for query in counts}
    assert lengths == counts


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "query.limit"),
        ("limit=201", "query.limit"),
        ("cursor=canary", "query.cursor"),
        ("cursor=", "query.cursor"),
        ("status=canary", "query.status.0"),
        ("model=canary", "query.model"),
    ],
)
def test_a_bad_query_is_named_and_not_repeated(api: Api, query: str, field: str) -> None:
    answer = api.call(Role.OPERATOR, "GET", f"{PATH}?{query}")
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert "canary" not in answer.text
