"""One record that cannot be forgotten among many that can."""

from __future__ import annotations

import pytest
from sqlalchemy import select

import ml
from service.schemas.deletions import deletion_out
from service.settings import Settings
from service.store.batches.lifecycle import Claim
from service.store.batches.publication import BatchResult
from service.store.database import Database
from service.store.deletions.views import NamedRecord, find_view
from service.store.models.registry import current_version
from service.store.tables import Batch, Certificate, Record, Version
from tests import samples
from worker import forget
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.lease import Lease

COUNT = 16


@pytest.mark.parametrize("poisoned", [0, 10])
def test_one_poisoned_record_does_not_hold_up_the_others(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch, poisoned: int
) -> None:
    process = forget._process

    def fail_if_poisoned(context: WorkerContext, claim: Claim, lease: Lease) -> BatchResult:
        if poisoned in claim.forgotten:
            raise ml.InvalidInput("a row is not finite; retrain the model without it")
        return process(context, claim, lease)

    monkeypatch.setattr(forget, "_process", fail_if_poisoned)
    model_id = samples.register_sample(settings, database)
    deletion_ids = [
        samples.request_deletion(settings, database, records=[NamedRecord(model_id, record)]).deletion.id
        for record in range(COUNT)
    ]
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        released = find_view(session, deletion_ids[1], caller=None)
        parked = session.scalars(select(Batch)).one()
    assert "16 of its 16 deletions continue in batches of at most 8" in (parked.failure or "")
    assert "continues in a batch of at most 8" in (released.targets[0].failure or "")
    assert "retry it shortly in a smaller batch" in deletion_out(released).what_happens_next
    batches = 1
    while forget_pending(context, model_id):
        batches += 1
    assert batches <= 12
    with database.reading() as session:
        views = [find_view(session, deletion_id, caller=None) for deletion_id in deletion_ids]
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        certified = session.scalars(select(Certificate.deletion_id)).all()
        remaining = set(session.scalars(select(Record.record)))
        current = current_version(session, model_id)
    statuses = [view.deletion.status for view in views]
    assert statuses == ["failed" if record == poisoned else "completed" for record in range(COUNT)]
    assert views[poisoned].targets[0].failure == "a row is not finite; retrain the model without it"
    assert [version.number for version in versions] == list(range(1, len(versions) + 1))
    assert [version for version in versions if version.superseded_at is None] == [current]
    assert current.record_count == len(remaining) == len(samples.points()) - COUNT + 1
    assert remaining == {poisoned, *range(COUNT, len(samples.points()))}
    assert sorted(certified) == sorted(set(deletion_ids) - {deletion_ids[poisoned]})
