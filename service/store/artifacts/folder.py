"""Artifacts in a local folder: the default, for processes that share a disk."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedRandom
from pathlib import Path

from service.store.artifacts.store import StoredFile, digest_of, draft_name, verify_digest
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactDamaged, ArtifactsUnavailable, DiskFull, Gone

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
OVERWRITE_BYTES = 1 << 20


class ArtifactFolder:
    """Folder of artifacts. Files are written as drafts, synced and renamed: whole or absent, even after a power cut."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ping(self) -> None:
        """Raise unless the folder can be used. It need not exist: the first file creates it."""
        if self._root.exists() and not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise ArtifactsUnavailable("the folder of the artifacts cannot be read and written; check its permissions")

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        digest = digest_of(pieces)
        path = self.path(model_id, digest)
        with translate_disk_full():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self._draft(path)
            try:
                with draft.open("wb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(path.parent)
        return digest

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        path = self.path(model_id, digest)
        try:
            content = path.read_bytes()
            verify_digest(content, digest)
        except FileNotFoundError:
            raise _gone_error(digest) from None
        except ArtifactDamaged:
            # Destroyed while it was read: `destroy` unlinks the file before it overwrites the content.
            if not path.exists():
                raise _gone_error(digest) from None
            raise
        return content

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        path = self.path(model_id, name)
        if not path.parent.exists():
            return
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            path.unlink()
            _sync_folder(path.parent)
            _overwrite(file)
        with contextlib.suppress(OSError):  # fails unless it was the model's last file
            path.parent.rmdir()

    def files(self, model_id: uuid.UUID | None = None) -> Iterator[StoredFile]:
        for path in self._root.glob(f"{model_id or '*'}/*"):
            file = StoredFile.parse(f"{path.parent.name}/{path.name}")
            if file is not None:
                yield file

    def modified_at(self, file: StoredFile) -> datetime | None:
        try:
            seconds = self.path(file.model_id, file.name).stat().st_mtime
        except FileNotFoundError:
            return None
        return datetime.fromtimestamp(seconds, UTC)

    def abort_uploads(self, model_id: uuid.UUID) -> None:
        """Do nothing: an unfinished file is a draft, which `files` lists."""

    def keeps_versions(self) -> bool:
        return False

    def path(self, model_id: uuid.UUID, name: str) -> Path:
        return self._root / str(model_id) / name

    def _draft(self, path: Path) -> Path:
        return path.with_name(draft_name(path.name))


@contextlib.contextmanager
def translate_disk_full() -> Iterator[None]:
    """Raise DiskFull for the system's errors of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise DiskFull("the disk is full and nothing was stored; free space, then try again") from error


def _gone_error(digest: str) -> Gone:
    return Gone(f"artifact {digest} was destroyed; request the current version")


def _overwrite(file: BufferedRandom) -> None:
    """Overwrite with zeros, in place. The effect depends on the disk: docs/explanation/erasure.md."""
    remaining = os.fstat(file.fileno()).st_size
    while remaining > 0:
        remaining -= file.write(bytes(min(remaining, OVERWRITE_BYTES)))
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Sync a folder, which makes renames and unlinks in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
