"""Deletions that name rows: only these are forgotten, and the other rows of their owner stay."""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
from safetensors.numpy import load
from sqlalchemy import select

from lethe.verify import verify
from service.settings import Settings
from service.store.certificates.bundles import find_certificate
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView, NamedRecord, find_view
from service.store.models.registry import current_version
from service.store.tables import Record, Subject
from tests import samples
from worker.context import WorkerContext
from worker.forget import forget_pending


def request_records(
    database: Database, context: WorkerContext, model_id: uuid.UUID, *records: int, **changes: object
) -> DeletionView:
    named = [NamedRecord(model_id, record) for record in records]
    request = DeletionRequest("acme", "gdpr", [], None, "request-1", 0.0, named)
    with database.writing() as session:
        return samples.store_deletion(session, replace(request, **changes), context.signer)  # type: ignore[arg-type]


def test_only_the_named_rows_are_forgotten(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    view = request_records(database, context, model_id, 5, 18)
    assert forget_pending(context, model_id) is True
    retained = [row for row in range(40) if row not in (5, 18)]
    with database.reading() as session:
        version = current_version(session, model_id)
        posterior = load(context.artifacts.get(model_id, version.posterior_digest))
        truth = load(samples.posterior(samples.points()[retained]))
        assert np.allclose(posterior["mean"], truth["mean"], atol=1e-9)
        dataset = load_dataset(context.artifacts.get(model_id, version.dataset_digest))
        assert dataset.records.tolist() == retained == sorted(session.scalars(select(Record.record)))
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE
        deletion_view = find_view(session, view.deletion.id, caller=None)
        assert (deletion_view.deletion.status, deletion_view.deletion.outcome) == ("completed", None)
        assert deletion_view.records == [NamedRecord(model_id, 5), NamedRecord(model_id, 18)]
        bundle = find_certificate(session, deletion_view.targets[0].certificate_id, caller=None)
    checked = verify(bundle.encode(), context.signer.public_pem.encode())
    assert (checked.predicate["subjects"], checked.predicate["named_records"]) == ([], [5, 18])


def test_the_last_row_of_a_person_erases_the_key_too(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    request_records(database, context, model_id, 4, 5, 6, 7)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE - 1


def test_rows_and_people_in_one_request(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    request_records(database, context, model_id, 0, 8, lookups=[samples.lookup(settings, 2)])
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        remaining = set(session.scalars(select(Record.record)))
    assert remaining == set(range(40)) - {0, *range(8, 12)}


def test_a_row_that_is_erased_already_needs_no_worker(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    view = request_records(database, context, model_id, 5)
    samples.request_deletion(settings, database, 1)
    assert forget_pending(context, model_id) is True
    later = request_records(database, context, model_id, 6)
    assert later.deletion.status == "completed"
    assert "erased by an earlier deletion" in str(later.deletion.outcome)
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
