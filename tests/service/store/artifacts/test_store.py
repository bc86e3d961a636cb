from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.artifacts.bucket import ArtifactBucket
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import ArtifactStore, StoredFile, adopt, destroy_due, digest_of, write_ahead
from service.store.batches.lifecycle import ClaimTerms, claim_batch
from service.store.database import Database
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactsUnavailable, Gone, LeaseLost
from service.store.models.registry import current_version
from service.store.tables import Artifact, AuditEntry, Batch, now
from tests import samples
from tests.s3_server import BUCKET

MODEL = uuid.uuid4()


@pytest.fixture(params=["folder", "s3", "memory"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """Each kind of store in turn."""
    if request.param == "folder":
        return ArtifactFolder(tmp_path / "artifacts")
    if request.param == "s3":
        request.getfixturevalue("s3")
    bucket = BUCKET if request.param == "s3" else ""
    return ArtifactBucket(f"{request.param}://{bucket}/{uuid.uuid4()}")


def make_due(database: Database, digest: str) -> None:
    with database.writing() as session:
        session.get_one(Artifact, (MODEL, digest)).destroy_at = now() - timedelta(seconds=1)


def test_a_stored_file_is_read_back(artifacts: ArtifactStore) -> None:
    digest = artifacts.put(MODEL, b"con", memoryview(b"tent"))
    assert artifacts.put(MODEL, b"content") == digest
    assert artifacts.get(MODEL, digest) == b"content"
    (file,) = artifacts.files()
    assert (file.model_id, file.name) == (MODEL, digest)
    modified_at = artifacts.modified_at(file)
    assert modified_at is not None
    assert abs(modified_at - now()) < timedelta(minutes=1)


def test_a_destroyed_file_is_gone(artifacts: ArtifactStore) -> None:
    digest = artifacts.put(MODEL, b"content")
    (file,) = artifacts.files()
    artifacts.destroy(MODEL, digest)
    artifacts.destroy(MODEL, digest)
    with pytest.raises(Gone):
        artifacts.get(MODEL, digest)
    assert list(artifacts.files()) == []
    assert artifacts.modified_at(file) is None


def test_a_file_that_is_not_adopted_is_destroyed(database: Database, artifacts: ArtifactStore) -> None:
    orphan = write_ahead(database, artifacts, MODEL, "dataset", b"orphan")
    adopted = write_ahead(database, artifacts, MODEL, "dataset", b"adopted")
    with database.writing() as session:
        adopt(session, MODEL, adopted)
        assert session.get_one(Artifact, (MODEL, orphan)).destroy_at is not None
    assert destroy_due(database, artifacts) == 0  # not yet due
    make_due(database, orphan)
    assert destroy_due(database, artifacts) == 1
    assert destroy_due(database, artifacts) == 0
    assert artifacts.get(MODEL, adopted) == b"adopted"
    with pytest.raises(Gone):
        artifacts.get(MODEL, orphan)
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry)).one()
        assert (entry.action, entry.details["digest"]) == ("artifact.destroyed", orphan)


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "artifacts")


def test_destruction_continues_after_a_crash_between_file_and_row(database: Database, folder: ArtifactFolder) -> None:
    digest = write_ahead(database, folder, MODEL, "dataset", b"content")
    make_due(database, digest)
    folder.destroy(MODEL, digest)  # then the process crashed
    assert destroy_due(database, folder) == 1
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is not None


def test_destroyed_content_can_be_stored_again(database: Database, folder: ArtifactFolder) -> None:
    digest = write_ahead(database, folder, MODEL, "posterior", b"content")
    make_due(database, digest)
    destroy_due(database, folder)
    write_ahead(database, folder, MODEL, "posterior", b"content")
    assert folder.get(MODEL, digest) == b"content"
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is None


def test_content_stored_again_during_its_destruction_survives(database: Database, folder: ArtifactFolder) -> None:
    """The retry of a batch creates the same files as the failed attempt, whose files are due."""
    digest = write_ahead(database, folder, MODEL, "dataset", b"content")
    make_due(database, digest)
    writer = threading.Thread(target=write_ahead, args=(database, folder, MODEL, "dataset", b"content"))

    class Overtaken(ArtifactFolder):
        def destroy(self, model_id: uuid.UUID, name: str) -> None:
            writer.start()
            writer.join(0.3)  # it must wait before it writes the file
            super().destroy(model_id, name)

    assert destroy_due(database, Overtaken(folder.path(MODEL, digest).parents[1])) == 1
    writer.join()
    assert folder.get(MODEL, digest) == b"content"
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is None


def test_a_destroyed_file_cannot_be_adopted(database: Database, folder: ArtifactFolder) -> None:
    digest = write_ahead(database, folder, MODEL, "dataset", b"content")
    make_due(database, digest)
    destroy_due(database, folder)
    with pytest.raises(ArtifactsUnavailable, match="try again"), database.writing() as session:
        adopt(session, MODEL, digest)


def test_a_file_that_cannot_be_destroyed_does_not_block_others(database: Database, folder: ArtifactFolder) -> None:
    stuck, destroyable = (write_ahead(database, folder, MODEL, "dataset", content) for content in (b"stuck", b"other"))
    for digest in (stuck, destroyable):
        make_due(database, digest)
    folder.path(MODEL, stuck).unlink()
    folder.path(MODEL, stuck).mkdir()
    assert destroy_due(database, folder) == 1
    assert [file.name for file in folder.files()] == [stuck]
    folder.path(MODEL, stuck).rmdir()
    assert destroy_due(database, folder) == 1  # it stayed due


def test_files_of_a_current_version_are_never_destroyed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.writing() as session:
        version = current_version(session, model_id)
        session.execute(update(Artifact).values(destroy_at=now() - timedelta(seconds=1)))
    assert destroy_due(database, open_artifacts(settings)) == 0
    assert open_artifacts(settings).get(model_id, version.posterior_digest)


def taken_over(database: Database, model_id: uuid.UUID) -> uuid.UUID:
    """Claim the model's deletion again, as after the end of the lease, and return the new batch."""
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
        claim = claim_batch(session, model_id, "worker", ClaimTerms(30.0, 5))
    assert claim is not None
    return claim.batch_id


@pytest.fixture
def model_id(settings: Settings, database: Database) -> uuid.UUID:
    """A model with a waiting deletion."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    return model_id


def test_a_batch_that_was_taken_over_writes_nothing(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    late, _ = taken_over(database, model_id), taken_over(database, model_id)
    with pytest.raises(LeaseLost):
        write_ahead(database, folder, model_id, "dataset", b"content", batch_id=late)
    assert list(folder.files()) == []
    with database.reading() as session:
        assert session.get(Artifact, (model_id, digest_of([b"content"]))) is None


class Slow(ArtifactFolder):
    """Folder that something happens to before a file is written."""

    before: Callable[[], object]

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        self.before()
        return super().put(model_id, *pieces)


def test_a_file_that_is_written_after_the_takeover_is_destroyed_at_once(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID, tmp_path: Path
) -> None:
    late, slow = taken_over(database, model_id), Slow(tmp_path / "artifacts")
    slow.before = lambda: taken_over(database, model_id)
    with pytest.raises(LeaseLost):
        write_ahead(database, slow, model_id, "dataset", b"content", batch_id=late)
    assert list(folder.files()) == []
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, digest_of([b"content"]))).destroyed_at is not None


def test_a_late_file_with_the_bytes_of_the_next_batch_is_left_to_it(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID, tmp_path: Path
) -> None:
    late, slow = taken_over(database, model_id), Slow(tmp_path / "artifacts")

    def take_over_and_write() -> None:
        write_ahead(database, folder, model_id, "dataset", b"content", batch_id=taken_over(database, model_id))

    slow.before = take_over_and_write
    with pytest.raises(LeaseLost):
        write_ahead(database, slow, model_id, "dataset", b"content", batch_id=late)
    assert folder.get(model_id, digest_of([b"content"])) == b"content"


def test_only_the_files_of_one_model_are_listed(artifacts: ArtifactStore) -> None:
    digest, other = artifacts.put(MODEL, b"content"), uuid.uuid4()
    artifacts.put(other, b"content")
    assert list(artifacts.files(MODEL)) == [StoredFile(MODEL, digest)]
    assert list(artifacts.files(uuid.uuid4())) == []
    assert len(list(artifacts.files())) == 2
    assert not artifacts.keeps_versions()
    artifacts.abort_uploads(MODEL)
    assert artifacts.get(MODEL, digest) == b"content"
