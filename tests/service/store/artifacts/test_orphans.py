from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from sqlalchemy import select

from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.orphans import OrphanReport, collect_orphans
from service.store.artifacts.store import adopt, destroy_due, draft_name, write_ahead
from service.store.database import Database
from service.store.errors import Gone
from service.store.tables import Artifact, AuditEntry, now

MODEL = uuid.uuid4()


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "artifacts")


def store(database: Database, folder: ArtifactFolder, content: bytes) -> str:
    """Store an artifact with its row."""
    digest = write_ahead(database, folder, MODEL, "dataset", content)
    with database.writing() as session:
        adopt(session, MODEL, digest)
    return digest


def make_old(path: Path) -> None:
    os.utime(path, (1e9, 1e9))


def add_orphan(folder: ArtifactFolder, content: bytes) -> str:
    """Store an old file without a row."""
    digest = folder.put(MODEL, content)
    make_old(folder.path(MODEL, digest))
    return digest


def test_an_orphan_is_made_due_and_destroyed(database: Database, folder: ArtifactFolder) -> None:
    own = store(database, folder, b"own")
    orphan = add_orphan(folder, b"orphan")
    assert collect_orphans(database, folder) == OrphanReport(drafts=0, orphans=1, missing=0)
    assert folder.get(MODEL, orphan) == b"orphan"
    assert destroy_due(database, folder) == 1
    with pytest.raises(Gone):
        folder.get(MODEL, orphan)
    assert folder.get(MODEL, own) == b"own"
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry)).one()
    assert (entry.action, entry.details) == ("artifact.orphan_destroyed", {"digest": orphan, "kind": "orphan"})


def test_young_files_are_left_alone(database: Database, folder: ArtifactFolder) -> None:
    store(database, folder, b"own")
    digest = folder.put(MODEL, b"just stored by another process")
    folder.path(MODEL, digest).with_name(draft_name(digest)).touch()
    assert collect_orphans(database, folder) == OrphanReport(drafts=0, orphans=0, missing=0)


def test_an_old_draft_is_destroyed_at_once(database: Database, folder: ArtifactFolder) -> None:
    digest = store(database, folder, b"own")
    draft = folder.path(MODEL, digest).with_name(draft_name(digest))
    draft.touch()
    make_old(draft)
    assert collect_orphans(database, folder) == OrphanReport(drafts=1, orphans=0, missing=0)
    assert not draft.exists()
    with database.reading() as session:
        assert session.scalars(select(AuditEntry.details)).one() == {"kind": "draft", "name": draft.name}


def test_a_destroyed_file_that_a_backup_brought_back_is_destroyed_again(
    database: Database, folder: ArtifactFolder
) -> None:
    store(database, folder, b"own")
    digest = store(database, folder, b"content")
    with database.writing() as session:
        session.get_one(Artifact, (MODEL, digest)).destroy_at = now()
    assert destroy_due(database, folder) == 1
    add_orphan(folder, b"content")
    assert collect_orphans(database, folder).orphans == 1
    assert destroy_due(database, folder) == 1
    with database.reading() as session:
        assert session.get_one(Artifact, (MODEL, digest)).destroyed_at is not None


def test_nothing_is_destroyed_if_most_files_are_unknown(database: Database, folder: ArtifactFolder) -> None:
    """The folder probably belongs to another database."""
    store(database, folder, b"own")
    orphans = [add_orphan(folder, content) for content in (b"1", b"2")]
    assert collect_orphans(database, folder).orphans == 0
    folder.destroy(MODEL, orphans[0])
    assert collect_orphans(database, folder).orphans == 1


def test_a_missing_file_is_reported_unless_it_is_due(database: Database, folder: ArtifactFolder) -> None:
    missing, due = store(database, folder, b"missing"), store(database, folder, b"due")
    with database.writing() as session:
        session.get_one(Artifact, (MODEL, due)).destroy_at = now()
    for digest in (missing, due):
        folder.destroy(MODEL, digest)
    assert collect_orphans(database, folder) == OrphanReport(drafts=0, orphans=0, missing=1)
