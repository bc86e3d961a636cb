"""Artifacts in an object store (S3 or any other that fsspec supports), for API and workers on many hosts."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import fsspec  # type: ignore[import-untyped]
import structlog

from service.store.artifacts.folder import translate_disk_full
from service.store.artifacts.store import StoredFile, digest_of, draft_name, verify_digest
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactsUnavailable, Gone, StoreError

log = structlog.get_logger("artifacts")

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs"}
PART_BYTES = 16 << 20
"""Bytes of an upload held in memory."""


class ArtifactBucket:
    """Objects `<model>/<digest>` below a prefix that no other Lethe uses.

    An object store shows an upload only when it is complete, so a plain put under the final key is atomic. A draft
    would have to be copied there, which is a second upload and no safer. Elsewhere (sftp, a share) a file is written
    as a draft and moved.

    Open it after a fork, never before: the thread that talks to the store does not survive in the child. It can be
    shared between threads.
    """

    def __init__(self, url: str) -> None:
        # A new instance, so that none is inherited; no cached listings, since other hosts write too.
        self._files, root = fsspec.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
        self._root = root.rstrip("/")
        protocol = self._files.protocol
        protocols = {protocol} if isinstance(protocol, str) else {*protocol}
        self._is_object_store = bool(OBJECT_STORES & protocols)
        self._is_s3 = "s3" in protocols

    def ping(self) -> None:
        """Raise unless the store answers and has the bucket. There need not be any file yet."""
        bucket = self._root.partition("/")[0]
        with _translate_errors():
            if not self._files.exists(self._root) and self._is_object_store and not self._files.exists(bucket):
                raise FileNotFoundError(bucket)

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        digest = digest_of(pieces)
        with _translate_errors():
            if self._is_object_store:
                self._upload(self._key(model_id, digest), pieces)
            else:
                self._write_and_move(model_id, digest, pieces)
        return digest

    def get(self, model_id: uuid.UUID, digest: str) -> bytes:
        with _translate_errors():
            try:
                content: bytes = self._files.cat_file(self._key(model_id, digest))
            except FileNotFoundError:
                raise Gone(f"artifact {digest} was destroyed; request the current version") from None
        verify_digest(content, digest)
        return content

    def destroy(self, model_id: uuid.UUID, name: str) -> None:
        key = self._key(model_id, name)
        with _translate_errors():
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(key)
            if self._files.exists(key):
                raise ArtifactsUnavailable(
                    "the artifact store still has a file that it reported as deleted; check the store"
                )

    def files(self, model_id: uuid.UUID | None = None) -> Iterator[StoredFile]:
        with _translate_errors():
            keys = self._files.find(self._root if model_id is None else f"{self._root}/{model_id}")
        files = (StoredFile.parse(key.removeprefix(f"{self._root}/")) for key in keys)
        return (file for file in files if file is not None)

    def modified_at(self, file: StoredFile) -> datetime | None:
        with _translate_errors():
            try:
                timestamp: datetime = self._files.modified(self._key(file.model_id, file.name))
            except FileNotFoundError:
                return None
        return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)

    def abort_uploads(self, model_id: uuid.UUID) -> None:
        """Abort the model's unfinished multipart uploads. Only S3 can list them."""
        prefix = self._key(model_id, "").partition("/")[2]
        with _translate_errors():
            for upload in self._ask_s3("list_multipart_uploads", Prefix=prefix).get("Uploads", []):
                upload_id = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                with contextlib.suppress(FileNotFoundError):  # it was finished or aborted meanwhile
                    self._files.call_s3("abort_multipart_upload", Bucket=self._bucket, **upload_id)

    def keeps_versions(self) -> bool:
        with _translate_errors():
            return bool(self._ask_s3("get_bucket_versioning").get("Status") == "Enabled")

    def _ask_s3(self, method: str, **options: str) -> dict[str, Any]:
        """Return the answer about the bucket; empty if the store is not S3, does not permit it or does not know it."""
        if not self._is_s3:
            return {}
        try:
            answer: dict[str, Any] = self._files.call_s3(method, Bucket=self._bucket, **options)
        except FileNotFoundError:  # how some servers say that there are none
            return {}
        except (OSError, NotImplementedError) as error:
            log.warning("artifacts.not_answered", method=method, reason=type(error).__name__)
            return {}
        return answer

    @property
    def _bucket(self) -> str:
        bucket: str = self._root.partition("/")[0]
        return bucket

    def _key(self, model_id: uuid.UUID, name: str) -> str:
        return f"{self._root}/{model_id}/{name}"

    def _upload(self, key: str, pieces: Sequence[Piece]) -> None:
        file = self._files.open(key, "wb", block_size=PART_BYTES)
        try:
            _write(file, pieces)
            file.close()
        except BaseException:
            file.closed = True  # otherwise closing it would complete the partial upload
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
            with contextlib.suppress(Exception):  # the sweep removes it later
                self._files.rm_file(draft)
            raise


def _write(file: Any, pieces: Sequence[Piece]) -> None:
    """Write in parts, so that a data set is not copied in memory."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), PART_BYTES):
            file.write(view[start : start + PART_BYTES])


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise ArtifactsUnavailable for any error of the store. Each has its own types, most of them no OSError."""
    try:
        with translate_disk_full():
            yield
    except StoreError:
        raise
    except Exception as error:
        raise ArtifactsUnavailable(
            f"the artifact store cannot be used ({type(error).__name__}); check that LETHE_ARTIFACT_URL can be "
            "reached, read and written, then try again"
        ) from error
