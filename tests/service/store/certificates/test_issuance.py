from __future__ import annotations

import uuid

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.certificates.listing import signed_predicate
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree, prove_forgotten
from service.store.deletions.views import NamedRecord
from service.store.models.registry import current_version
from service.store.tables import Certificate
from tests import samples
from tests.bundle_schema import check_bundle
from tests.service.routes.test_jobs import claim, publish_all
from vocabulary.certificate import CertificatePredicate
from vocabulary.signed_model import write_timestamp


def certify_all(settings: Settings, database: Database, model_id: uuid.UUID) -> dict[uuid.UUID, CertificatePredicate]:
    """Publish all that is due, and return the certificates' predicates by deletion."""
    ids = publish_all(settings, database, claim(database, model_id))
    with database.reading() as session:
        bundles = {row.deletion_id: row.bundle for row in (session.get_one(Certificate, row_id) for row_id in ids)}
    for bundle in bundles.values():
        check_bundle(bundle)
    return {deletion_id: signed_predicate(bundle) for deletion_id, bundle in bundles.items()}


def test_each_certificate_of_a_batch_proves_its_own_records(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    other = samples.register_sample(settings, database)  # whose rows of the same people are not meant
    with database.reading() as session:
        digest = current_version(session, model_id).dataset_digest
    dataset = load_dataset(open_artifacts(settings).get(model_id, digest))

    def ask(*people: int, rows: tuple[int, ...] = ()) -> uuid.UUID:
        named = [NamedRecord(model_id, row) for row in rows]
        return samples.request_deletion(settings, database, *people, records=named, model_ids=[model_id]).deletion.id

    owned = {
        ask(1): [4, 5, 6, 7],
        ask(1, 9): [4, 5, 6, 7, 36, 37, 38, 39],
        ask(rows=(5, 20)): [5, 20],
        ask(2, rows=(8, 30)): [8, 9, 10, 11, 30],
    }
    samples.request_deletion(settings, database, 3, model_ids=[other])
    predicates = certify_all(settings, database, model_id)
    forgotten = {row for rows in owned.values() for row in rows}
    before, after = DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(dataset.without(forgotten))
    expected = {deletion_id: prove_forgotten(before, after, rows) for deletion_id, rows in owned.items()}
    assert {deletion_id: predicate.forgotten for deletion_id, predicate in predicates.items()} == expected


def test_a_certificate_states_the_data_sets_and_the_deadline(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        before = current_version(session, model_id)
    view = samples.request_deletion(settings, database, 3)
    (predicate,) = certify_all(settings, database, model_id).values()
    with database.reading() as session:
        after = current_version(session, model_id)
    assert predicate.dataset is not None
    assert predicate.dataset.to_dict() == {
        "before": {"digest": before.dataset_digest, "root": before.dataset_root, "records": 40},
        "after": {"digest": after.dataset_digest, "root": after.dataset_root, "records": 36},
    }
    assert predicate.due_at is not None
    assert write_timestamp(predicate.due_at) == write_timestamp(view.deletion.due_at)
    assert predicate.received_at < predicate.issued_at < predicate.due_at
