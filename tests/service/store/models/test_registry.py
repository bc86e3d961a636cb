from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import func, select

from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.location import open_artifacts
from service.store.clock import current_time
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tensor_files import Piece
from service.store.datasets.tree import DatasetTree
from service.store.errors import DiskFull, Gone, InvalidRegistration, NotFound
from service.store.models.registry import (
    Registration,
    change_policy,
    count_records,
    current_version,
    find_model,
    find_model_page,
    find_version_page,
    last_version,
    record_readiness,
    register,
    require_existing,
    versions_without_readiness,
)
from service.store.paging import Window
from service.store.tables import Artifact, AuditEntry, Model, Record, Subject
from tests import samples
from vocabulary.families import FAMILIES

POLICY = {"epsilon": 1e-6, "level": "proved", "rungs": ["newton"], "seconds": None}


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "artifacts")


@pytest.fixture
def registration() -> Registration:
    rows = np.arange(6.0).reshape(3, 2)
    return Registration(
        name="small",
        family="gaussian-mixture",
        config=dict(samples.CONFIG),
        policy=dict(POLICY),
        posterior=samples.posterior(rows),
        records=save({"x": rows}),
        lookups=[b"a" * 32, b"b" * 32, b"a" * 32],
    )


def test_a_registered_model_has_files_rows_and_a_current_version(
    database: Database, folder: ArtifactFolder, registration: Registration
) -> None:
    model_id = register(database, folder, replace(registration, never_seen=registration.records), "engineer")
    with database.reading() as session:
        model, version = find_model(session, model_id), current_version(session, model_id)
        owners = dict(
            session.execute(select(Record.record, Subject.lookup).join(Subject, Subject.id == Record.subject_id)).all()
        )
        scheduled = session.scalars(select(Artifact.destroy_at)).all()
        entry = session.scalars(select(AuditEntry)).one()
    assert (model.name, model.posterior_kind, model.device, model.turn) == ("small", "variational", "cpu", 0)
    assert owners == {0: b"a" * 32, 1: b"b" * 32, 2: b"a" * 32}
    assert (version.number, version.record_count, version.superseded_at) == (1, 3, None)
    assert folder.get(model_id, version.posterior_digest) == registration.posterior
    assert (
        version.dataset_root
        == DatasetTree.from_dataset(load_dataset(folder.get(model_id, version.dataset_digest))).root
    )
    assert model.never_seen_digest is not None
    assert folder.get(model_id, model.never_seen_digest) == registration.records
    assert scheduled == [None] * 3  # all are adopted
    digests = {"posterior": version.posterior_digest, "dataset": version.dataset_digest}
    assert (entry.actor, entry.action, entry.details) == ("engineer", "model.registered", digests)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("subjects", {"lookups": [b"a" * 32]}),
        ("posterior", {"posterior": b"no tensors"}),
        ("records", {"records": b"no tensors"}),
        ("never_seen", {"never_seen": b"no tensors"}),
    ],
)
def test_an_invalid_part_is_named_and_nothing_is_stored(
    database: Database, folder: ArtifactFolder, registration: Registration, field: str, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidRegistration) as error:
        register(database, folder, replace(registration, **changes), "engineer")  # type: ignore[arg-type]
    assert error.value.field == field
    assert list(folder.files()) == []
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Model)) == 0


def test_an_ensemble_with_one_person_in_two_shards_is_refused(database: Database, folder: ArtifactFolder) -> None:
    members = {"members": np.zeros((2, 26)), "seed": np.arange(2), "recipe": np.array([1, 8, 1e-3, 0.5])}
    halves = np.repeat([0, 1], 40)
    registration = Registration(
        name="ensemble",
        family="mlp",
        config={"dimensions": 3, "hidden": 4, "classes": 2},
        policy=dict(POLICY),
        posterior=save({**members, "shard": halves}),
        posterior_kind="ensemble",
        records=save({"x": np.zeros((80, 4))}),
        lookups=[bytes([row]) * 32 for row in range(80)],
        layout=FAMILIES["mlp"].config(dimensions=3, hidden=4, classes=2).layout,
    )
    register(database, folder, registration, "engineer")
    shared = [*registration.lookups[:79], registration.lookups[5]]
    with pytest.raises(InvalidRegistration, match="rows 5 and 79 belong to one subject"):
        register(database, folder, replace(registration, lookups=shared), "engineer")


def test_a_full_disk_leaves_no_file(database: Database, tmp_path: Path, registration: Registration) -> None:
    class SmallFolder(ArtifactFolder):
        def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
            if list(self.files()):
                raise DiskFull("the disk is full")
            return super().put(model_id, *pieces)

    folder = SmallFolder(tmp_path / "small")
    with pytest.raises(DiskFull):
        register(database, folder, registration, "engineer")
    assert list(folder.files()) == []


def test_an_unknown_model_is_not_found(database: Database) -> None:
    unknown = uuid.uuid4()
    with database.writing() as session:
        with pytest.raises(NotFound, match=f"model {unknown} not found"):
            find_model(session, unknown)
        with pytest.raises(NotFound):
            find_version_page(session, unknown, Window(10))
        with pytest.raises(NotFound):
            change_policy(session, unknown, POLICY, "operator")


def test_models_are_listed_newest_first_with_their_current_version(settings: Settings, database: Database) -> None:
    model_ids = [samples.register_sample(settings, database) for _ in range(3)]
    with database.reading() as session:
        first = find_model_page(session, Window(2))
        second = find_model_page(session, Window(2, first.end))
        versions = find_version_page(session, model_ids[0], Window(10)).items
    listed = [*first.items, *second.items]
    assert [model.id for model, _ in listed] == model_ids[::-1]
    assert all(version.model_id == model.id and version.number == 1 for model, version in listed)
    assert [(view.version.number, view.posterior.digest) for view in versions] == [(1, listed[2][1].posterior_digest)]


def test_an_unchanged_policy_is_not_logged(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.writing() as session:
        old = find_model(session, model_id).policy
        change_policy(session, model_id, dict(old), "operator")
        change_policy(session, model_id, POLICY, "operator")
    with database.reading() as session:
        assert find_model(session, model_id).policy == POLICY
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "policy.changed")).one()
    assert entry.details == {"old": old, "new": POLICY}


def test_readiness_is_missing_until_it_is_recorded(settings: Settings, database: Database) -> None:
    first, second = (samples.register_sample(settings, database) for _ in range(2))
    with database.writing() as session:
        assert {version.model_id for version in versions_without_readiness(session)} == {first, second}
        (version,) = versions_without_readiness(session, first)
        record_readiness(session, version.id, {"converged": True})
    with database.reading() as session:
        assert [version.model_id for version in versions_without_readiness(session)] == [second]
        assert versions_without_readiness(session, first) == []
    assert open_artifacts(settings).get(first, version.dataset_digest)


def end_model(database: Database, model_id: uuid.UUID) -> None:
    """Mark a model as destroyed, as a batch that empties it does."""
    with database.writing() as session:
        model = session.get_one(Model, model_id)
        model.destroyed_at = current_version(session, model_id).superseded_at = current_time(session)


def test_a_destroyed_model_keeps_its_last_version_and_has_no_records(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        assert count_records(session, model_id) == 40
        assert last_version(session, model_id).id == current_version(session, model_id).id
    end_model(database, model_id)
    with database.reading() as session:
        assert count_records(session, model_id) == 0
        assert last_version(session, model_id).number == 1
        ((model, version),) = find_model_page(session, Window(10)).items
        assert (model.id, version.number) == (model_id, 1)
        assert versions_without_readiness(session) == []


def test_the_policy_of_a_destroyed_model_cannot_be_changed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        require_existing(find_model(session, model_id))
    end_model(database, model_id)
    with pytest.raises(Gone, match=r"was destroyed at .* UTC"), database.writing() as session:
        change_policy(session, model_id, dict(POLICY), "test")
