from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.deletions.views import NamedRecord, find_deletion, find_view, views_of
from service.store.errors import NotFound
from service.store.tables import Batch, Deletion, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


def test_a_deletion_is_found_by_its_caller_and_by_roles_that_see_all(settings: Settings, database: Database) -> None:
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    with database.reading() as session:
        assert find_deletion(session, deletion_id, "acme").id == find_deletion(session, deletion_id, None).id
        for unknown_id, caller in ((deletion_id, "umbrella"), (uuid.uuid4(), "acme"), (uuid.uuid4(), None)):
            with pytest.raises(NotFound, match=f"deletion {unknown_id} not found"):
                find_view(session, unknown_id, caller)


def test_views_keep_subjects_records_and_targets_apart(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    records = [NamedRecord(model_id, 30), NamedRecord(model_id, 7)]
    views = [
        samples.request_deletion(settings, database, 1, 2),
        samples.request_deletion(settings, database, records=records),
        samples.request_deletion(settings, database, 999),
    ]
    with database.reading() as session:
        rows = [session.get_one(Deletion, view.deletion.id) for view in views]
        people, named, nobody = views_of(session, rows)
    assert people.commitments == views[0].commitments
    assert (len(people.commitments), people.records) == (2, [])
    assert (named.commitments, named.records) == ([], sorted(records, key=lambda record: record.record))
    assert [target.model_id for target in named.targets] == [model_id]
    assert nobody.targets == []


@pytest.mark.parametrize(("percent", "minutes_left"), [(0.5, None), (25.0, 30), (100.0, 0)])
def test_the_end_is_estimated_from_the_pace(
    settings: Settings, database: Database, percent: float, minutes_left: int | None
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion_id = samples.request_deletion(settings, database, 1).deletion.id
    with database.writing() as session:
        claim_batch(session, model_id, "worker", TERMS)
        session.execute(update(Batch).values(started_at=now() - timedelta(minutes=10), percent=percent, phase="newton"))
    with database.reading() as session:
        (target,) = find_view(session, deletion_id, None).targets
    assert (target.status, target.phase, target.percent) == ("running", "newton", percent)
    if minutes_left is None:
        assert target.estimated_end is None
    else:
        assert target.estimated_end is not None
        assert abs(target.estimated_end - now() - timedelta(minutes=minutes_left)) < timedelta(seconds=10)


def test_records_are_written_as_in_receipts() -> None:
    model_id = uuid.uuid4()
    assert NamedRecord(model_id, 7).to_json() == {"model": str(model_id), "record": 7}
