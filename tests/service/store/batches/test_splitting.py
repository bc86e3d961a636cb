"""A deletion that always fails does not block the others."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.batches.lifecycle import WORKER_SILENT, Claim, ClaimTerms, claim_batch, fail_batch
from service.store.database import Database
from service.store.deletions import interventions
from service.store.deletions.listing import Criteria
from service.store.tables import Batch, DeletionTarget, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=2)


def claim(database: Database, model_id: uuid.UUID) -> Claim:
    with database.writing() as session:
        session.execute(update(DeletionTarget).values(not_before=now()))  # skip the backoff
        claimed = claim_batch(session, model_id, "worker", TERMS)
    assert claimed is not None
    return claimed


def fail(database: Database, claimed: Claim, *, permanent: bool, splits: bool = True) -> Batch:
    with database.writing() as session:
        fail_batch(session, claimed.batch_id, "it broke.", permanent=permanent, max_attempts=2, splits=splits)
        return session.get_one(Batch, claimed.batch_id)


def targets(database: Database) -> list[DeletionTarget]:
    with database.reading() as session:
        return list(session.scalars(select(DeletionTarget).order_by(DeletionTarget.received_at)))


def ask(settings: Settings, database: Database, count: int) -> uuid.UUID:
    model_id = samples.register_sample(settings, database)
    for number in range(count):
        samples.request_deletion(settings, database, number)
    return model_id


def test_a_permanent_failure_of_several_splits_them_at_once(settings: Settings, database: Database) -> None:
    model_id = ask(settings, database, 5)
    failed = fail(database, claim(database, model_id), permanent=True)
    assert (failed.status, failed.failure) == (
        "failed",
        "it broke. 5 of its 5 deletions continue in batches of at most 3.",
    )
    for target in targets(database):
        assert (target.status, target.batch_limit, target.attempts) == ("pending", 3, 0)
        assert target.not_before <= now()
        assert target.failure == (
            "it broke. It continues in a batch of at most 3, so that other deletions do not hold it up."
        )


def test_halves_are_rounded_up_and_end_at_single_deletions(settings: Settings, database: Database) -> None:
    model_id, sizes = ask(settings, database, 5), []
    while any(target.status == "pending" for target in targets(database)):
        claimed = claim(database, model_id)
        sizes.append(len(claimed.requests))
        fail(database, claimed, permanent=True)
    assert sizes == [5, 3, 2, 1, 1, 2, 1, 1, 1]
    for target in targets(database):
        assert (target.status, target.attempts, target.failure) == ("failed", 1, "it broke.")


def test_a_transient_failure_is_split_after_the_last_attempt(settings: Settings, database: Database) -> None:
    model_id = ask(settings, database, 4)
    failed = fail(database, claim(database, model_id), permanent=False)
    assert failed.failure == "it broke."
    assert {target.batch_limit for target in targets(database)} == {None}
    failed = fail(database, claim(database, model_id), permanent=False)
    assert "batches of at most 2" in (failed.failure or "")
    assert {(target.status, target.batch_limit) for target in targets(database)} == {("pending", 2)}
    fail(database, claim(database, model_id), permanent=False)  # no attempts are left for this size
    assert [target.batch_limit for target in targets(database)] == [1, 1, 2, 2]


def test_only_deletions_without_attempts_left_are_split(settings: Settings, database: Database) -> None:
    model_id = ask(settings, database, 2)
    with database.writing() as session:
        session.scalars(select(DeletionTarget).order_by(DeletionTarget.received_at)).first().attempts = 1  # type: ignore[union-attr]
    failed = fail(database, claim(database, model_id), permanent=False)
    assert failed.failure == "it broke. 1 of its 2 deletions continue in batches of at most 1."
    assert [(target.attempts, target.batch_limit) for target in targets(database)] == [(1, 1), (1, None)]


def test_a_failure_unrelated_to_the_deletions_is_not_split(settings: Settings, database: Database) -> None:
    model_id = ask(settings, database, 3)
    for _ in range(2):
        failed = fail(database, claim(database, model_id), permanent=False, splits=False)
    assert failed.failure == "it broke."
    assert {(target.status, target.failure) for target in targets(database)} == {("failed", "it broke.")}


def test_a_batch_that_kills_its_workers_is_split(settings: Settings, database: Database) -> None:
    """The next worker may survive a smaller batch."""
    model_id = ask(settings, database, 4)
    sizes = []
    for _ in range(4):
        claimed = claim(database, model_id)
        sizes.append(len(claimed.requests))
        with database.writing() as session:
            session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert sizes == [4, 4, 2, 1]
    claim(database, model_id)
    first = targets(database)[0]
    assert (first.status, first.failure) == ("failed", WORKER_SILENT)


@pytest.mark.parametrize("count", [1, 2])
def test_a_retry_removes_the_limit(settings: Settings, database: Database, count: int) -> None:
    model_id = ask(settings, database, count)
    while any(target.status == "pending" for target in targets(database)):
        fail(database, claim(database, model_id), permanent=True)
    with database.writing() as session:
        interventions.retry_matching(session, Criteria(), "operator")
    assert {(target.status, target.batch_limit) for target in targets(database)} == {("pending", None)}
    assert len(claim(database, model_id).requests) == count
