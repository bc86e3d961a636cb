"""Artifacts anywhere that fsspec reaches (S3 and the like): for API and workers on many hosts."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import fsspec  # type: ignore[import-untyped]

from service.store.artifacts.folder import telling_a_full_disk
from service.store.artifacts.store import StoredFile, checked, digest_of, draft_name
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactsAway, Gone, StoreError

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs"}
PART = 16 << 20
"""What is held in memory of an upload, in bytes."""


class ArtifactBucket:
    """Keys `<model>/<digest>` below a prefix that no other Lethe uses.

    An object store shows an upload when it is complete and not before, so a plain put under the final key is atomic:
    a draft would have to be copied there, which is a second upload and no safer. Elsewhere (sftp, a share) a file is
    written as a draft and moved.

    Open it after a fork, never before: the thread that talks to the store does not live on in the child. Threads may
    share it.
    """

    def __init__(self, url: str) -> None:
        # An instance of our own, so that none is inherited; no listings kept, since other hosts write too.
        self._files, root = fsspec.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        self._root = root.rstrip("/")
        protocol = self._files.protocol
        self._is_object_store = bool(OBJECT_STORES & {*([protocol] if isinstance(protocol, str) else protocol)})

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        digest = digest_of(pieces)
        with _telling_trouble():
            if self._is_object_store:
                self._upload(self._key(model_id, digest), pieces)
            else:
                self._write_and_move(model_id, digest, pieces)
        return digest

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        with _telling_trouble():
            try:
                content: bytes = self._files.cat_file(self._key(model_id, digest))
            except FileNotFoundError:
                raise Gone(f"artifact {digest} was destroyed; ask for the current version") from None
            return checked(content, digest)

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        key = self._key(model_id, name)
        with _telling_trouble():
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(key)
            if self._files.exists(key):
                raise ArtifactsAway("the artifact store says it deleted a file and still has it; look into the store")

    def files(self) -> Iterator[StoredFile]:
        with _telling_trouble():
            keys = self._files.find(self._root)
        named = (StoredFile.named(key.removeprefix(f"{self._root}/")) for key in keys)
        return (file for file in named if file is not None)

    def modified_at(self, file: StoredFile) -> datetime | None:
        with _telling_trouble():
            try:
                moment: datetime = self._files.modified(self._key(file.model_id, file.name))
            except FileNotFoundError:
                return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def _key(self, model_id: uuid.UUID, name: str) -> str:
        return f"{self._root}/{model_id}/{name}"

    def _upload(self, key: str, pieces: Sequence[Piece]) -> None:
        file = self._files.open(key, "wb", block_size=PART)
        try:
            _write(file, pieces)
            file.close()
        except BaseException:
            file.closed = True  # or its end would complete what is only half there
            with contextlib.suppress(Exception):  # the store may be what failed
                file.discard()
            raise

    def _write_and_move(self, model_id: uuid.UUID, digest: str, pieces: Sequence[Piece]) -> None:
        draft = self._key(model_id, draft_name(digest))
        self._files.makedirs(f"{self._root}/{model_id}", exist_ok=True)
        try:
            with self._files.open(draft, "wb") as file:
                _write(file, pieces)
            self._files.mv(draft, self._key(model_id, digest))
        except BaseException:
            with contextlib.suppress(Exception):  # the sweep finds it later
                self._files.rm_file(draft)
            raise


def _write(file: Any, pieces: Sequence[Piece]) -> None:
    """In parts: a data set is not held in memory once more."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), PART):
            file.write(view[start : start + PART])


@contextlib.contextmanager
def _telling_trouble() -> Iterator[None]:
    """Each store has errors of its own, and most are no OSError: to us they are all one."""
    try:
        with telling_a_full_disk():
            yield
    except StoreError:
        raise
    except Exception as error:
        raise ArtifactsAway(
            f"the artifact store cannot be used ({type(error).__name__}); see to it that LETHE_ARTIFACT_URL can be "
            "reached, read and written, then try again"
        ) from error
