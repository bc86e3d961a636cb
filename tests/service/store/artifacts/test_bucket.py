"""Tests against a real S3 server, and fsspec's in-memory store where that is enough."""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.store.artifacts.bucket import ArtifactBucket
from service.store.artifacts.store import draft_name
from service.store.errors import ArtifactDamaged, ArtifactsUnavailable, Gone
from tests.s3_server import BUCKET, S3Server

MODEL = uuid.uuid4()


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4()}"


def object_file(s3: S3Server, url: str, digest: str) -> Path:
    return s3.folder / url.removeprefix(f"s3://{BUCKET}/") / str(MODEL) / digest


def test_another_host_sees_the_same_files(s3: S3Server, url: str) -> None:
    first, second = ArtifactBucket(url), ArtifactBucket(url)
    assert list(second.files()) == []
    digest = first.put(MODEL, b"content")
    assert second.get(MODEL, digest) == b"content"
    assert [file.name for file in second.files()] == [digest]
    second.destroy(MODEL, digest)
    with pytest.raises(Gone):
        first.get(MODEL, digest)
    assert list(first.files()) == []


def test_a_ping_needs_the_bucket_and_access_to_it(s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ArtifactBucket(url).ping()  # no file yet
    ArtifactBucket("memory://lethe").ping()
    with pytest.raises(ArtifactsUnavailable, match="FileNotFoundError"):
        ArtifactBucket("s3://missing/prefix").ping()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ArtifactsUnavailable, match="PermissionError"):
        ArtifactBucket(url).ping()


def test_a_large_file_is_uploaded_in_parts(s3: S3Server, url: str) -> None:
    """The pieces are a mapped file and an array, as in registration and erasure."""
    array = np.random.default_rng(3).integers(0, 256, 20 << 20, dtype=np.uint8)
    with mmap.mmap(-1, 1 << 20) as mapped:
        bucket = ArtifactBucket(url)
        digest = bucket.put(MODEL, mapped, array.data)
        assert digest == hashlib.sha256(bytes(1 << 20) + array.tobytes()).hexdigest()
    assert len(bucket.get(MODEL, digest)) == 21 << 20


def test_an_interrupted_upload_leaves_no_object(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ArtifactBucket(url)

    def break_off(file: Any, pieces: Any) -> None:
        file.write(b"half")
        raise ConnectionResetError

    monkeypatch.setattr("service.store.artifacts.bucket._write", break_off)
    with pytest.raises(ArtifactsUnavailable, match="ConnectionResetError"):
        bucket.put(MODEL, b"half of it")
    assert list(bucket.files()) == []


def test_a_changed_object_is_noticed(s3: S3Server, url: str) -> None:
    bucket = ArtifactBucket(url)
    digest = bucket.put(MODEL, b"content")
    object_file(s3, url, digest).write_bytes(b"Content")
    with pytest.raises(ArtifactDamaged):
        bucket.get(MODEL, digest)


def test_a_missing_object_is_gone(s3: S3Server, url: str) -> None:
    bucket = ArtifactBucket(url)
    digest = bucket.put(MODEL, b"content")
    object_file(s3, url, digest).unlink()
    with pytest.raises(Gone):
        bucket.get(MODEL, digest)


def test_only_artifact_keys_are_listed(s3: S3Server, url: str) -> None:
    """An inner prefix and a prefix with the same beginning belong to other installations."""
    bucket = ArtifactBucket(url)
    digest = bucket.put(MODEL, b"content")
    ArtifactBucket(f"{url}/inner").put(MODEL, b"of another")
    ArtifactBucket(f"{url}-too").put(MODEL, b"of another")
    object_file(s3, url, "notes.txt").write_bytes(b"")
    draft = draft_name(digest)
    object_file(s3, url, draft).write_bytes(b"")
    assert {file.name for file in bucket.files()} == {digest, draft}


def test_an_object_that_survives_its_deletion_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ArtifactBucket(url)
    digest = bucket.put(MODEL, b"content")
    monkeypatch.setattr(bucket._files, "rm_file", lambda key: None)
    with pytest.raises(ArtifactsUnavailable, match="still has a file"):
        bucket.destroy(MODEL, digest)


def test_a_missing_bucket_is_reported(s3: S3Server) -> None:
    with pytest.raises(ArtifactsUnavailable, match="LETHE_ARTIFACT_URL"):
        ArtifactBucket("s3://another-bucket/prefix").put(MODEL, b"content")


def test_wrong_credentials_are_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ArtifactsUnavailable) as caught:
        ArtifactBucket(url).put(MODEL, b"content")
    assert "wrong" not in str(caught.value)


def test_a_bucket_can_be_opened_after_a_fork(s3: S3Server, url: str) -> None:
    """Workers fork after the parent has used its own store, and the parent keeps using it."""
    bucket = ArtifactBucket(url)
    digest = bucket.put(MODEL, b"content")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_rewrite, args=(url, digest))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert bucket.get(MODEL, digest) == b"content"


def _rewrite(url: str, digest: str) -> None:
    bucket = ArtifactBucket(url)
    assert bucket.put(MODEL, bucket.get(MODEL, digest)) == digest


def test_a_draft_is_moved_where_a_put_is_not_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ArtifactBucket(f"memory://{uuid.uuid4()}")
    moved = []
    move = bucket._files.mv
    monkeypatch.setattr(bucket._files, "mv", lambda old, new: (moved.append((old, new)), move(old, new)))
    digest = bucket.put(MODEL, b"content")
    ((old, new),) = moved
    assert Path(old).name.startswith(f".{digest}.")
    assert Path(new).name == digest

    def refuse(old: str, new: str) -> None:
        raise OSError("no")

    monkeypatch.setattr(bucket._files, "mv", refuse)
    with pytest.raises(ArtifactsUnavailable):
        bucket.put(MODEL, b"other")
    assert [file.name for file in bucket.files()] == [digest]


def test_unfinished_uploads_of_the_model_are_aborted(s3: S3Server, url: str) -> None:
    """Their parts hold rows, and no listing of files shows them."""
    bucket = ArtifactBucket(url)
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    other = uuid.uuid4()
    for model_id in (MODEL, other):
        key = f"{prefix}/{model_id}/{'0' * 64}"
        bucket._files.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    bucket.abort_uploads(MODEL)
    pending = bucket._files.call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=prefix)["Uploads"]
    assert [upload["Key"] for upload in pending] == [f"{prefix}/{other}/{'0' * 64}"]


def test_a_store_that_does_not_list_uploads_is_used_without(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ArtifactBucket(url)

    def refuse(method: str, **options: str) -> None:
        raise PermissionError

    monkeypatch.setattr(bucket._files, "call_s3", refuse)
    bucket.abort_uploads(MODEL)
    assert not bucket.keeps_versions()


def test_a_bucket_with_versions_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ArtifactBucket(url)
    monkeypatch.setattr(bucket._files, "call_s3", lambda method, Bucket: {"Status": "Enabled"})  # noqa: N803
    assert bucket.keeps_versions()
