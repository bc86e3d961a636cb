"""A deletion that names rows: exactly these are forgotten, and the other rows of their owner stay."""

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
from service.store.deletions.creation import DeletionRequest
from service.store.deletions.views import DeletionView, NamedRecord, find_view
from service.store.models.registry import current_version
from service.store.tables import Record, Subject
from tests import samples
from worker.context import WorkerContext
from worker.forget import forget_pending


def ask(database: Database, context: WorkerContext, model_id: uuid.UUID, *records: int, **more: object) -> DeletionView:
    named = [NamedRecord(model_id, record) for record in records]
    request = DeletionRequest("acme", "gdpr", [], None, "request-1", 0.0, named)
    with database.writing() as session:
        return samples.store_deletion(session, replace(request, **more), context.signer)  # type: ignore[arg-type]


def test_only_the_named_rows_are_forgotten(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    view = ask(database, context, model_id, 5, 18)
    assert forget_pending(context, model_id) is True
    kept = [row for row in range(40) if row not in (5, 18)]
    with database.reading() as session:
        version = current_version(session, model_id)
        posterior = load(context.artifacts.get(model_id, version.posterior_digest))
        truth = load(samples.posterior(samples.points()[kept]))
        assert np.allclose(posterior["mean"], truth["mean"], atol=1e-9)
        dataset = load_dataset(context.artifacts.get(model_id, version.dataset_digest))
        assert dataset.records.tolist() == kept == sorted(session.scalars(select(Record.record)))
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE
        found = find_view(session, view.deletion.id, caller=None)
        assert (found.deletion.status, found.deletion.outcome) == ("completed", None)
        assert found.records == [NamedRecord(model_id, 5), NamedRecord(model_id, 18)]
        bundle = find_certificate(session, found.targets[0].certificate_id, caller=None)
    checked = verify(bundle.encode(), context.signer.public_pem.encode())
    assert (checked.predicate["subjects"], checked.predicate["named_records"]) == ([], [5, 18])


def test_the_last_row_of_a_person_takes_the_key_along(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    ask(database, context, model_id, 4, 5, 6, 7)
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE - 1


def test_rows_and_people_in_one_request(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    ask(database, context, model_id, 0, 8, lookups=[samples.lookup(settings, 2)])
    assert forget_pending(context, model_id) is True
    with database.reading() as session:
        left = set(session.scalars(select(Record.record)))
    assert left == set(range(40)) - {0, *range(8, 12)}


def test_a_row_erased_meanwhile_needs_no_worker(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    view = ask(database, context, model_id, 5)
    samples.request_deletion(settings, database, 1)
    assert forget_pending(context, model_id) is True
    later = ask(database, context, model_id, 6)
    assert later.deletion.status == "completed"
    assert "erased by an earlier deletion" in str(later.deletion.outcome)
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
