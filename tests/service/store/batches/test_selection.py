"""Selection takes the earliest deadlines up to the limits, and skips what needs no worker."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import delete, select, update

from service.settings import Settings
from service.store.batches.lifecycle import BatchStatus, Claim, ClaimTerms, claim_batch, end_batch
from service.store.batches.release import release_batches
from service.store.batches.selection import Limits
from service.store.database import Database
from service.store.states import DeletionStatus
from service.store.tables import Deletion, DeletionTarget, Record, now
from tests import samples


def claim(database: Database, model_id: uuid.UUID, limits: Limits, turn: int | None = None) -> Claim | None:
    with database.writing() as session:
        return claim_batch(session, model_id, "worker", ClaimTerms(30, 3, limits), turn)


def claimed_ids(claimed: Claim | None) -> list[uuid.UUID]:
    assert claimed is not None
    return [deletion_id for deletion_id, _ in claimed.requests]


def end(database: Database, claimed: Claim | None) -> None:
    """End the batch as published and complete its deletions."""
    assert claimed is not None
    with database.writing() as session:
        end_batch(session, claimed.batch_id, BatchStatus.PUBLISHED)
        targets = update(DeletionTarget).where(DeletionTarget.batch_id == claimed.batch_id)
        session.execute(targets.values(status=DeletionStatus.COMPLETED))


def change(database: Database, deletion_id: uuid.UUID, **columns: object) -> None:
    with database.writing() as session:
        session.execute(update(Deletion).where(Deletion.id == deletion_id).values(**columns))


def limit(database: Database, deletion_id: uuid.UUID, batch_limit: int) -> None:
    with database.writing() as session:
        target = update(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
        session.execute(target.values(batch_limit=batch_limit))


def test_the_earliest_deadline_comes_first_and_the_batch_ends_at_its_limit(
    settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_ids = [samples.request_deletion(settings, database, number).deletion.id for number in range(5)]
    change(database, deletion_ids[4], due_at=now() + timedelta(days=1))
    change(database, deletion_ids[2], due_at=now() - timedelta(days=1))
    order = [deletion_ids[2], deletion_ids[4], deletion_ids[0], deletion_ids[1], deletion_ids[3]]
    limits, batches = Limits(most_deletions=2), []
    for size in (2, 2, 1):
        claimed = claim(database, model_id, limits)
        assert len(claimed_ids(claimed)) == size
        batches.append(set(claimed_ids(claimed)))
        end(database, claimed)
    assert batches == [set(order[:2]), set(order[2:4]), set(order[4:])]
    assert claim(database, model_id, limits) is None


@pytest.mark.parametrize(("fraction", "people"), [(0.39, 3), (0.4, 4), (1.0, 6)])
def test_no_batch_forgets_more_than_its_fraction_of_the_records(
    settings: Settings, database: Database, fraction: float, people: int
) -> None:
    model_id = samples.register_sample(settings, database)
    for number in (0, 0, 1, 2, 3, 4, 5):  # the same person twice counts once
        samples.request_deletion(settings, database, number)
    claimed = claim(database, model_id, Limits(largest_fraction=fraction))
    assert claimed is not None
    assert list(claimed.forgotten) == list(range(people * samples.ROWS_EACH))


def test_a_deletion_above_the_limit_is_claimed_alone(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    large = samples.request_deletion(settings, database, *range(8)).deletion.id
    samples.request_deletion(settings, database, 9)
    assert claimed_ids(claim(database, model_id, Limits(largest_fraction=0.1))) == [large]


def test_the_smallest_limit_in_a_batch_applies(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_ids = [samples.request_deletion(settings, database, number).deletion.id for number in range(6)]
    limit(database, deletion_ids[2], 3)
    limit(database, deletion_ids[4], 1)
    sizes = []
    for _ in range(3):
        claimed = claim(database, model_id, Limits())
        sizes.append(set(claimed_ids(claimed)))
        end(database, claimed)
    # The fourth has no limit, but the fifth may still not join it.
    assert sizes == [set(deletion_ids[:3]), {deletion_ids[3]}, {deletion_ids[4]}]
    assert claimed_ids(claim(database, model_id, Limits())) == [deletion_ids[5]]


def test_deletions_of_erased_records_are_completed_during_selection(settings: Settings, database: Database) -> None:
    """Even if they fill a whole batch before the first deletion that needs a worker."""
    model_id = samples.register_sample(settings, database)
    erased = [samples.request_deletion(settings, database, 1).deletion.id for _ in range(5)]
    waiting = samples.request_deletion(settings, database, 2).deletion.id
    with database.writing() as session:
        session.execute(delete(Record).where(Record.record.in_(range(4, 8))))
    assert claimed_ids(claim(database, model_id, Limits(most_deletions=2))) == [waiting]
    with database.reading() as session:
        statuses = dict(session.execute(select(Deletion.id, Deletion.status)).all())
    assert statuses == {**dict.fromkeys(erased, "completed"), waiting: "running"}


def test_nothing_joins_a_batch_before_it_is_due(settings: Settings, database: Database) -> None:
    """Neither a deletion in backoff nor one that its caller may still cancel."""
    model_id = samples.register_sample(settings, database)
    failed, fresh, due = (samples.request_deletion(settings, database, number).deletion.id for number in range(3))
    with database.writing() as session:
        soon = now() + timedelta(minutes=5)
        for deletion_id, attempts in ((failed, 1), (fresh, 0)):
            target = update(DeletionTarget).where(DeletionTarget.deletion_id == deletion_id)
            session.execute(target.values(not_before=soon, attempts=attempts))
    assert claimed_ids(claim(database, model_id, Limits())) == [due]


def test_a_doorbell_is_answered_by_the_first_batch_that_begins_after_it(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    for number in range(3):
        samples.request_deletion(settings, database, number)
    limits = Limits(most_deletions=1)
    end(database, claim(database, model_id, limits, turn=0))
    assert claim(database, model_id, limits, turn=0) is None
    end(database, claim(database, model_id, limits, turn=1))
    assert claim(database, model_id, limits) is not None  # a claim without a turn is always allowed


def test_deletions_that_empty_the_model_together_ignore_the_limits(settings: Settings, database: Database) -> None:
    """The model is destroyed, so nothing is computed that a large batch would slow down."""
    model_id = samples.register_sample(settings, database)
    limits = Limits(largest_fraction=0.1)
    ids = [samples.request_deletion(settings, database, number).deletion.id for number in range(samples.PEOPLE - 1)]
    limit(database, ids[0], 1)
    claimed = claim(database, model_id, limits)
    assert len(claimed_ids(claimed)) == 1
    assert claimed is not None
    with database.writing() as session:
        release_batches(session, "worker")
    ids.append(samples.request_deletion(settings, database, samples.PEOPLE - 1).deletion.id)
    claimed = claim(database, model_id, limits)
    assert sorted(claimed_ids(claimed)) == sorted(ids)
    assert claimed is not None
    assert claimed.ends_model
