from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from service.settings import Settings
from service.store.batches.due import has_due_deletions, models_to_ring
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.tables import Batch, Deletion, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30, max_attempts=3)


def test_the_model_with_the_earliest_deadline_is_rung_for_first(settings: Settings, database: Database) -> None:
    """Its deletions may be pending or in the batch of a dead worker."""
    model_ids = [samples.register_sample(settings, database) for _ in range(4)]
    with_deadline = {}
    for model_id, days in zip(model_ids, (5, 1, 3, 0), strict=True):
        samples.request_deletion(settings, database, 1, model_ids=[model_id])
        with_deadline[samples.request_deletion(settings, database, 2, model_ids=[model_id]).deletion.id] = days
    with database.writing() as session:
        for deletion_id, days in with_deadline.items():
            due_at = now() + timedelta(days=days)
            session.execute(update(Deletion).where(Deletion.id == deletion_id).values(due_at=due_at))
        for model_id in model_ids[2:]:
            assert claim_batch(session, model_id, "worker", TERMS) is not None
        expired = update(Batch).where(Batch.model_id == model_ids[2])
        session.execute(expired.values(lease_expires_at=now() - timedelta(seconds=1)))
    with database.reading() as session:
        assert list(models_to_ring(session)) == [model_ids[1], model_ids[2], model_ids[0]]
        assert [has_due_deletions(session, model_id, now()) for model_id in model_ids] == [True, True, False, False]
