from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import rfc8785

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree, prove_forgotten
from service.store.deletions.views import NamedRecord
from service.store.models.registry import current_version
from service.store.tables import Certificate
from tests import samples
from tests.service.routes.test_jobs import claim, publish_all


def certified(settings: Settings, database: Database, model_id: uuid.UUID) -> dict[uuid.UUID, dict[str, Any]]:
    """Publish all that is due. What each deletion's certificate says."""
    ids = publish_all(settings, database, claim(database, model_id))
    with database.reading() as session:
        bundles = {row.deletion_id: row.bundle for row in (session.get_one(Certificate, one) for one in ids)}
    payloads = {one: base64.b64decode(json.loads(text)["envelope"]["payload"]) for one, text in bundles.items()}
    assert all(rfc8785.dumps(json.loads(payload)) == payload for payload in payloads.values())
    return {one: json.loads(payload)["predicate"] for one, payload in payloads.items()}


def test_each_deletion_of_a_batch_is_told_of_its_own_records(settings: Settings, database: Database) -> None:
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
    says = certified(settings, database, model_id)
    gone = {row for rows in owned.values() for row in rows}
    before, after = DatasetTree.from_dataset(dataset), DatasetTree.from_dataset(dataset.without(gone))
    expected = {deletion_id: prove_forgotten(before, after, rows) for deletion_id, rows in owned.items()}
    assert {deletion_id: told["forgotten"] for deletion_id, told in says.items()} == expected


def test_a_certificate_tells_the_data_sets_and_the_deadline(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        before = current_version(session, model_id)
    view = samples.request_deletion(settings, database, 3)
    (says,) = certified(settings, database, model_id).values()
    with database.reading() as session:
        after = current_version(session, model_id)
    assert says["dataset"] == {
        "before": {"digest": before.dataset_digest, "root": before.dataset_root, "records": 40},
        "after": {"digest": after.dataset_digest, "root": after.dataset_root, "records": 36},
    }
    due_at = view.deletion.due_at.isoformat(timespec="milliseconds")
    assert says["due_at"] == due_at.replace("+00:00", "Z")
    assert says["received_at"] < says["issued_at"] < says["due_at"]
