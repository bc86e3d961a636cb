"""Artifacts in a local folder: the default, and right wherever all processes see the same disk."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BufferedRandom
from pathlib import Path

from service.store.artifacts.store import StoredFile, checked, digest_of, draft_name
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactDamaged, DiskFull, Gone

FULL = (errno.ENOSPC, errno.EDQUOT)
AT_ONCE = 1 << 20


class ArtifactFolder:
    """Written under a draft's name, synced, renamed. A reader sees a whole file or none, also after a power cut."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        digest = digest_of(pieces)
        path = self.path(model_id, digest)
        with telling_a_full_disk():
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
            return checked(path.read_bytes(), digest)
        except FileNotFoundError:
            raise _gone(digest) from None
        except ArtifactDamaged:
            # Destroyed while it was read: its name goes first, then its content.
            if not path.exists():
                raise _gone(digest) from None
            raise

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        path = self.path(model_id, name)
        if not path.parent.exists():
            return
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            path.unlink()
            _sync_folder(path.parent)
            _overwrite(file)
        with contextlib.suppress(OSError):  # unless it was the last of its model
            path.parent.rmdir()

    def files(self) -> Iterator[StoredFile]:
        for path in self._root.glob("*/*"):
            file = StoredFile.named(f"{path.parent.name}/{path.name}")
            if file is not None:
                yield file

    def modified_at(self, file: StoredFile) -> datetime | None:
        try:
            seconds = self.path(file.model_id, file.name).stat().st_mtime
        except FileNotFoundError:
            return None
        return datetime.fromtimestamp(seconds, UTC)

    def path(self, model_id: uuid.UUID, name: str) -> Path:
        return self._root / str(model_id) / name

    def _draft(self, path: Path) -> Path:
        return path.with_name(draft_name(path.name))


@contextlib.contextmanager
def telling_a_full_disk() -> Iterator[None]:
    """A full disk is a state to be told and waited for, not a crash."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull("the disk is full and nothing was stored; free some space, then try again") from error


def _gone(digest: str) -> Gone:
    return Gone(f"artifact {digest} was destroyed; ask for the current version")


def _overwrite(file: BufferedRandom) -> None:
    """With zeros, in place. How much that is worth depends on the disk: docs/operations.md."""
    left = os.fstat(file.fileno()).st_size
    while left > 0:
        left -= file.write(bytes(min(left, AT_ONCE)))
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename or unlink is durable once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
