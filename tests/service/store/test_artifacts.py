from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.artifacts import ArtifactStore, adopt, destroy_due, schedule_destruction, write_ahead
from service.store.database import Database
from service.store.errors import ArtifactDamaged, Gone
from service.store.models import current_version
from service.store.tables import Artifact, AuditEntry, now
from tests import samples

MODEL = uuid.uuid4()


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def make_due(database: Database, digest: str) -> None:
    with database.writing() as session:
        schedule_destruction(session, MODEL, digest, now() - timedelta(seconds=1))


def test_what_is_put_comes_back(artifacts: ArtifactStore) -> None:
    digest = artifacts.put(MODEL, b"content")
    assert artifacts.put(MODEL, b"content") == digest
    assert artifacts.get(MODEL, digest) == b"content"
    assert [path.name for path in artifacts.path(MODEL, digest).parent.iterdir()] == [digest]


def test_a_changed_file_is_noticed(artifacts: ArtifactStore) -> None:
    digest = artifacts.put(MODEL, b"content")
    artifacts.path(MODEL, digest).write_bytes(b"Content")
    with pytest.raises(ArtifactDamaged):
        artifacts.get(MODEL, digest)


def test_a_destroyed_file_is_gone(artifacts: ArtifactStore) -> None:
    digest = artifacts.put(MODEL, b"content")
    artifacts.destroy(MODEL, digest)
    artifacts.destroy(MODEL, digest)
    with pytest.raises(Gone):
        artifacts.get(MODEL, digest)


def test_a_file_nobody_adopted_is_destroyed_in_the_end(database: Database, artifacts: ArtifactStore) -> None:
    orphan = write_ahead(database, artifacts, MODEL, "dataset", b"orphan")
    adopted = write_ahead(database, artifacts, MODEL, "dataset", b"adopted")
    with database.writing() as session:
        adopt(session, MODEL, adopted)
        assert session.get_one(Artifact, (MODEL, orphan)).destroy_at is not None
    assert destroy_due(database, artifacts) == 0  # its time has not come
    make_due(database, orphan)
    assert destroy_due(database, artifacts) == 1
    assert destroy_due(database, artifacts) == 0
    assert artifacts.get(MODEL, adopted) == b"adopted"
    with pytest.raises(Gone):
        artifacts.get(MODEL, orphan)
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry)).one()
        assert (entry.action, entry.details["digest"]) == ("artifact.destroyed", orphan)


def test_destruction_goes_on_after_a_crash_between_file_and_row(database: Database, artifacts: ArtifactStore) -> None:
    digest = write_ahead(database, artifacts, MODEL, "dataset", b"content")
    make_due(database, digest)
    artifacts.destroy(MODEL, digest)  # and then the process died
    assert destroy_due(database, artifacts) == 1
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is not None


def test_content_that_comes_back_is_stored_again(database: Database, artifacts: ArtifactStore) -> None:
    digest = write_ahead(database, artifacts, MODEL, "posterior", b"content")
    make_due(database, digest)
    destroy_due(database, artifacts)
    write_ahead(database, artifacts, MODEL, "posterior", b"content")
    assert artifacts.get(MODEL, digest) == b"content"
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is None


def test_what_a_current_version_stands_on_is_never_destroyed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    artifacts = ArtifactStore(settings.artifact_dir)
    with database.writing() as session:
        version = current_version(session, model_id)
        schedule_destruction(session, model_id, version.posterior_digest, now() - timedelta(seconds=1))
    assert destroy_due(database, artifacts) == 0
    assert artifacts.get(model_id, version.posterior_digest)
