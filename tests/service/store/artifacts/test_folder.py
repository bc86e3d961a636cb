from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.store.artifacts.folder import OVERWRITE_BYTES, ArtifactFolder
from service.store.artifacts.store import draft_name
from service.store.errors import ArtifactDamaged, ArtifactsUnavailable, DiskFull, Gone
from tests.full_disk import drafts_on_a_full_disk

MODEL = uuid.uuid4()


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactFolder:
    return ArtifactFolder(tmp_path / "artifacts")


def test_a_ping_needs_access_to_the_folder(folder: ArtifactFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.ping()  # no file yet
    folder.put(MODEL, b"content")
    folder.ping()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who has access to everything
    with pytest.raises(ArtifactsUnavailable, match="permissions"):
        folder.ping()


def test_a_put_leaves_only_the_file(folder: ArtifactFolder) -> None:
    digest = folder.put(MODEL, b"con", b"tent")
    folder.put(MODEL, b"content")
    path = folder.path(MODEL, digest)
    assert [file.name for file in path.parent.iterdir()] == [digest]
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_changed_file_is_noticed(folder: ArtifactFolder) -> None:
    digest = folder.put(MODEL, b"content")
    folder.path(MODEL, digest).write_bytes(b"Content")
    with pytest.raises(ArtifactDamaged):
        folder.get(MODEL, digest)


def test_a_destroyed_file_is_overwritten(folder: ArtifactFolder, tmp_path: Path) -> None:
    """A hard link to the same file shows its blocks afterwards."""
    content = os.urandom(OVERWRITE_BYTES + 5)
    digest = folder.put(MODEL, content)
    (tmp_path / "witness").hardlink_to(folder.path(MODEL, digest))
    folder.destroy(MODEL, digest)
    assert (tmp_path / "witness").read_bytes() == bytes(len(content))
    assert list((tmp_path / "artifacts").iterdir()) == []  # the model's folder is removed too


def test_a_file_destroyed_while_it_is_read_is_gone_and_not_damaged(
    folder: ArtifactFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = folder.put(MODEL, b"content")
    read = Path.read_bytes

    def destroyed_meanwhile(path: Path) -> bytes:
        content = read(path)
        folder.destroy(MODEL, digest)
        return bytes(len(content))

    monkeypatch.setattr(Path, "read_bytes", destroyed_meanwhile)
    with pytest.raises(Gone):
        folder.get(MODEL, digest)


def test_a_full_disk_leaves_existing_files_unchanged(folder: ArtifactFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = folder.put(MODEL, b"content")
    monkeypatch.setattr(ArtifactFolder, "_draft", drafts_on_a_full_disk)
    for content in (b"other", b"content"):
        with pytest.raises(DiskFull, match="disk is full"):
            folder.put(MODEL, content)
    assert [path.name for path in folder.path(MODEL, digest).parent.iterdir()] == [digest]
    assert folder.get(MODEL, digest) == b"content"
    monkeypatch.undo()
    folder.put(MODEL, b"other")


def test_only_artifacts_and_drafts_are_listed(folder: ArtifactFolder, tmp_path: Path) -> None:
    digest = folder.put(MODEL, b"content")
    path = folder.path(MODEL, digest)
    draft = path.with_name(draft_name(digest))
    draft.touch()
    for foreign in (path.with_name("notes.txt"), path.with_name(digest.upper()), tmp_path / "artifacts" / "README"):
        foreign.touch()
    (tmp_path / "artifacts" / "another").mkdir()
    (tmp_path / "artifacts" / "another" / digest).touch()
    listed = {file.name: file for file in folder.files()}
    assert listed.keys() == {digest, draft.name}
    assert (listed[digest].is_draft, listed[draft.name].is_draft) == (False, True)
    os.utime(draft, (1e9, 1e9))
    assert folder.modified_at(listed[draft.name]) == datetime.fromtimestamp(1e9, UTC)
    draft.unlink()
    assert folder.modified_at(listed[draft.name]) is None
