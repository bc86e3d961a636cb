"""Files of batches that ended without publication are gone when the certificates of the next are out."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from lethe.verify import verify
from service.settings import Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.certificates.bundles import find_certificate
from service.store.database import Database
from service.store.datasets.tensor_files import Piece
from service.store.errors import ArtifactsUnavailable
from service.store.models.registry import current_version
from service.store.tables import Artifact, Batch, Certificate, DeletionTarget, now
from tests import samples
from worker import forget
from worker.context import WorkerContext
from worker.forget import forget_pending


def files(context: WorkerContext, model_id: uuid.UUID) -> set[str]:
    return {file.name for file in context.artifacts.files(model_id)}


def current_files(database: Database, model_id: uuid.UUID) -> set[str]:
    with database.reading() as session:
        version = current_version(session, model_id)
    return {version.posterior_digest, version.dataset_digest}


def erasures(context: WorkerContext) -> list[dict[str, Any]]:
    """Return what each certificate says about other files, once verified."""
    keys = context.signer.public_pem.encode()
    with context.database.reading() as session:
        ids = session.scalars(select(Certificate.id).order_by(Certificate.issued_at)).all()
        bundles = [find_certificate(session, certificate_id, caller=None) for certificate_id in ids]
    return [verify(bundle.encode(), keys).predicate["erasure"] for bundle in bundles]


def expire(database: Database) -> None:
    """Let leases and delays pass."""
    past = now() - timedelta(seconds=1)
    with database.writing() as session:
        session.execute(update(Batch).values(lease_expires_at=past))
        session.execute(update(DeletionTarget).values(not_before=past))


def test_a_certificate_lists_the_files_of_the_failed_attempt(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    before = current_files(database, model_id)
    samples.request_deletion(settings, database, 1)

    def fail(*_: object) -> None:
        raise ArtifactsUnavailable("no")

    with monkeypatch.context() as failing:
        failing.setattr(forget, "publish", fail)
        forget_pending(context, model_id)
    left = files(context, model_id) - before
    assert len(left) == 2
    samples.request_deletion(settings, database, 2)
    expire(database)
    forget_pending(context, model_id)
    assert files(context, model_id) == current_files(database, model_id)
    for erasure in erasures(context):
        assert {file["digest"] for file in erasure["destroyed"]} == left
        assert {file["digest"] for file in erasure["scheduled"]} == before
        assert {file["kind"] for file in erasure["scheduled"]} == {"posterior", "dataset"}


def test_a_retained_posterior_is_listed_with_its_time(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    retaining = replace(context, settings=settings.model_copy(update={"superseded_retention_seconds": 3600.0}))
    model_id = samples.register_sample(settings, database)
    for person in (1, 2):
        samples.request_deletion(settings, database, person)
        forget_pending(retaining, model_id)
    first, second = erasures(context)
    posterior, dataset = (
        next(file for file in first["scheduled"] if file["kind"] == kind) for kind in ("posterior", "dataset")
    )
    assert posterior["at"] > dataset["at"]
    assert posterior in second["scheduled"]  # it still exists, with the influence of both people
    assert {file["digest"] for file in second["destroyed"]} == {dataset["digest"]}
    with database.reading() as session:
        scheduled = session.get_one(Artifact, (model_id, posterior["digest"])).destroy_at
    assert scheduled is not None
    assert scheduled.isoformat(timespec="milliseconds") == posterior["at"].replace("Z", "+00:00")


def test_a_late_file_that_arrives_during_the_batch_is_gone_when_it_is_published(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    collect_evidence = forget._collect_evidence

    def write_meanwhile(*arguments: Any) -> Any:
        context.artifacts.put(model_id, b"rows of a late worker")
        return collect_evidence(*arguments)

    monkeypatch.setattr(forget, "_collect_evidence", write_meanwhile)
    forget_pending(context, model_id)
    assert len(erasures(context)) == 1
    assert files(context, model_id) == current_files(database, model_id)


class Overtaken(ArtifactFolder):
    """Folder whose writer is stopped before its file is written, until something else is done."""

    meanwhile: Callable[[], object]

    def put(self, model_id: uuid.UUID, *pieces: Piece) -> str:
        self.meanwhile()
        return super().put(model_id, *pieces)


@pytest.mark.parametrize("others", [(), (2,)], ids=["the same people", "more people"])
def test_a_worker_that_writes_after_the_takeover_leaves_nothing(
    settings: Settings, database: Database, context: WorkerContext, others: tuple[int, ...]
) -> None:
    """Its successor has already published: the same files, or others."""
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    late = Overtaken(settings.artifact_dir)

    def take_over() -> None:
        for person in others:
            samples.request_deletion(settings, database, person)
        expire(database)
        assert forget_pending(context, model_id)

    late.meanwhile = take_over
    assert forget_pending(replace(context, artifacts=late), model_id)
    assert files(context, model_id) == current_files(database, model_id)
    with database.reading() as session:
        assert sorted(session.scalars(select(Batch.status))) == ["abandoned", "published"]
        assert current_version(session, model_id).number == 2
