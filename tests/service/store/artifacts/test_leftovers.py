from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from safetensors.numpy import save
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store.artifacts import leftovers
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.leftovers import LATE_WRITERS, clear_leftovers, collect_leftovers
from service.store.artifacts.store import draft_name, write_ahead
from service.store.batches.fence import is_idle
from service.store.batches.lifecycle import ClaimTerms, claim_batch, end_batch
from service.store.database import Database
from service.store.errors import ArtifactsUnavailable, Gone, LeaseLost
from service.store.models.registry import current_version
from service.store.states import BatchStatus
from service.store.tables import Artifact, AuditEntry, Batch, Model, Version, now
from tests import samples

TERMS = ClaimTerms(lease_seconds=30.0, max_attempts=5)


@pytest.fixture
def folder(settings: Settings) -> ArtifactFolder:
    return ArtifactFolder(settings.artifact_dir)


@pytest.fixture
def model_id(settings: Settings, database: Database) -> uuid.UUID:
    """A model with a waiting deletion."""
    model_id = samples.register_sample(settings, database, never_seen=save({"x": samples.points()}))
    samples.request_deletion(settings, database, 1)
    return model_id


def claim(database: Database, model_id: uuid.UUID) -> uuid.UUID:
    """Claim the waiting deletion; a batch that holds it has lost its lease."""
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
        claimed = claim_batch(session, model_id, "worker", TERMS)
    assert claimed is not None
    return claimed.batch_id


def names(folder: ArtifactFolder, model_id: uuid.UUID) -> set[str]:
    return {file.name for file in folder.files(model_id)}


def registered(database: Database, model_id: uuid.UUID) -> set[str]:
    with database.reading() as session:
        version = current_version(session, model_id)
        never_seen = session.get_one(Model, model_id).never_seen_digest
    assert never_seen is not None
    return {version.posterior_digest, version.dataset_digest, never_seen}


def destructions(database: Database) -> list[tuple[str, dict[str, str]]]:
    query = select(AuditEntry).where(AuditEntry.action.like("artifact.%")).order_by(AuditEntry.id)
    with database.reading() as session:
        return [(entry.action, entry.details) for entry in session.scalars(query)]


def crash(database: Database, folder: ArtifactFolder, model_id: uuid.UUID) -> str:
    """Leave behind a data set and the draft of another file, as a worker that was killed; return the digest."""
    batch_id = claim(database, model_id)
    digest = write_ahead(database, folder, model_id, "dataset", b"rows", batch_id=batch_id)
    folder.path(model_id, draft_name(digest)).write_bytes(b"ro")
    return digest


def test_what_a_crashed_batch_left_is_destroyed_by_the_next(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    digest = crash(database, folder, model_id)
    assert clear_leftovers(database, folder, claim(database, model_id)) == 2
    assert names(folder, model_id) == registered(database, model_id)
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, digest)).destroyed_at is not None
    entries = dict(destructions(database))
    assert entries["artifact.destroyed"] == {"digest": digest, "kind": "dataset"}
    assert entries["artifact.orphan_destroyed"]["kind"] == "draft"


def test_a_crash_loop_piles_up_no_copies(database: Database, folder: ArtifactFolder, model_id: uuid.UUID) -> None:
    for attempt in range(4):
        batch_id = claim(database, model_id)
        clear_leftovers(database, folder, batch_id)
        write_ahead(database, folder, model_id, "dataset", b"attempt %d" % attempt, batch_id=batch_id)
        assert len(names(folder, model_id)) == 3 + 1


def test_new_files_of_the_batch_are_kept(database: Database, folder: ArtifactFolder, model_id: uuid.UUID) -> None:
    batch_id = claim(database, model_id)
    new, late = (
        write_ahead(database, folder, model_id, "dataset", content, batch_id=batch_id) for content in (b"new", b"late")
    )
    assert clear_leftovers(database, folder, batch_id, new_files=[new]) == 1
    assert names(folder, model_id) == {new, *registered(database, model_id)}
    assert late not in names(folder, model_id)
    folder.destroy(model_id, new)
    with pytest.raises(ArtifactsUnavailable, match="before it was published"):
        clear_leftovers(database, folder, batch_id, new_files=[new])


def supersede(database: Database, folder: ArtifactFolder, model_id: uuid.UUID, destroy_at: timedelta) -> str:
    """Add the posterior of an older version, to be destroyed in that time; return its digest."""
    digest = write_ahead(database, folder, model_id, "posterior", b"an older posterior")
    with database.writing() as session:
        session.get_one(Artifact, (model_id, digest)).destroy_at = now() + destroy_at
        version = Version(model_id=model_id, number=0, posterior_digest=digest, dataset_digest="0" * 64)
        version.record_count, version.superseded_at = 5, now()
        session.add(version)
    return digest


def test_a_superseded_file_is_kept_until_it_is_due(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    digest = supersede(database, folder, model_id, timedelta(hours=1))
    batch_id = claim(database, model_id)
    assert clear_leftovers(database, folder, batch_id) == 0
    assert digest in names(folder, model_id)
    with database.writing() as session:
        session.get_one(Artifact, (model_id, digest)).destroy_at = now()
    assert clear_leftovers(database, folder, batch_id) == 1
    assert digest not in names(folder, model_id)


def test_a_file_that_was_never_written_is_recorded_as_destroyed(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    """Its writer may still come: the row tells it that the file is to be destroyed."""
    digest = crash(database, folder, model_id)
    folder.destroy(model_id, digest)
    clear_leftovers(database, folder, claim(database, model_id))
    with database.reading() as session:
        assert session.get_one(Artifact, (model_id, digest)).destroyed_at is not None


def test_a_batch_that_was_taken_over_destroys_nothing(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    late, current = claim(database, model_id), claim(database, model_id)
    digest = write_ahead(database, folder, model_id, "dataset", b"rows", batch_id=current)
    with pytest.raises(LeaseLost):
        clear_leftovers(database, folder, late)
    assert digest in names(folder, model_id)


def test_nothing_is_destroyed_if_the_current_version_is_missing(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    """The database may be older than the files: then the files of newer versions seem unknown."""
    digest = crash(database, folder, model_id)
    with database.reading() as session:
        folder.destroy(model_id, current_version(session, model_id).dataset_digest)
    with pytest.raises(Gone, match="restore it from a backup"):
        clear_leftovers(database, folder, claim(database, model_id))
    assert digest in names(folder, model_id)


def test_the_sweep_destroys_what_no_batch_follows_up(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    crash(database, folder, model_id)
    assert collect_leftovers(database, folder) == 0  # its batch still runs
    with database.writing() as session:
        batch_id = session.scalars(select(Batch.id)).one()
        end_batch(session, batch_id, BatchStatus.FAILED)
    assert collect_leftovers(database, folder) == 2
    assert names(folder, model_id) == registered(database, model_id)
    assert collect_leftovers(database, folder) == 0
    assert len(destructions(database)) == 2


def test_the_sweep_destroys_what_a_late_worker_wrote(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    """It was killed between writing the file and seeing that its batch had been taken over."""
    digest = crash(database, folder, model_id)
    current = claim(database, model_id)
    clear_leftovers(database, folder, current)
    with database.writing() as session:
        end_batch(session, current, BatchStatus.PUBLISHED)
    folder.put(model_id, b"rows")
    assert collect_leftovers(database, folder) == 1
    assert digest not in names(folder, model_id)
    with database.writing() as session:
        session.execute(update(Batch).values(finished_at=now() - LATE_WRITERS))
    folder.put(model_id, b"rows")
    assert collect_leftovers(database, folder) == 0  # left to the search for orphans


def test_a_file_that_is_published_after_the_listing_is_kept(
    database: Database, folder: ArtifactFolder, model_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = claim(database, model_id)
    digest = write_ahead(database, folder, model_id, "posterior", b"new", batch_id=batch_id)
    with database.writing() as session:
        end_batch(session, batch_id, BatchStatus.FAILED)

    def publish_first(session: Session, model_id: uuid.UUID) -> bool:
        current_version(session, model_id).posterior_digest = digest
        return is_idle(session, model_id)

    monkeypatch.setattr(leftovers, "is_idle", publish_first)
    assert collect_leftovers(database, folder) == 0
    assert digest in names(folder, model_id)


def test_a_model_with_a_missing_file_does_not_stop_the_sweep(
    settings: Settings, database: Database, folder: ArtifactFolder, model_id: uuid.UUID
) -> None:
    damaged = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    for crashed in (damaged, model_id):
        crash(database, folder, crashed)
    with database.writing() as session:
        session.execute(update(Batch).values(status=BatchStatus.FAILED, finished_at=now()))
        missing = current_version(session, damaged).dataset_digest
    folder.destroy(damaged, missing)
    assert collect_leftovers(database, folder) == 2
    assert names(folder, model_id) == registered(database, model_id)
