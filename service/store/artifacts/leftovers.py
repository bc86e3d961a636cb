"""Leftovers: files of a model that belong to none of its versions, left behind by batches that did not publish.

They hold records of people who may be forgotten next. Only the model's running batch may write files, so it destroys
all others: before it writes, so that a crash loop piles up no copies, and before it publishes. The sweep destroys
those of models that no batch follows up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.artifacts.store import ArtifactStore, StoredFile, destroy_file
from service.store.batches.fence import is_idle, require_running
from service.store.clock import current_time
from service.store.database import Database
from service.store.errors import ArtifactsUnavailable, Gone, StoreError
from service.store.states import BatchStatus
from service.store.tables import Artifact, Batch, Model, Refresh, Version

log = structlog.get_logger("artifacts")

LATE_WRITERS = timedelta(hours=1)
"""For this long after a batch ended unpublished, the sweep looks for files that its worker still wrote."""


def clear_leftovers(
    database: Database, artifacts: ArtifactStore, batch_id: uuid.UUID, new_files: Collection[str] = ()
) -> int:
    """Destroy all leftovers of the batch's model except its `new_files`; return their number.

    Raise LeaseLost once the batch does not run any more, and Gone or ArtifactsUnavailable if a file that is needed is
    missing.
    """

    def require_turn(session: Session) -> bool:
        require_running(session, batch_id)
        return True

    with database.reading() as session:
        batch = session.get_one(Batch, batch_id)
    return _clear(database, artifacts, batch.model_id, batch.worker, require_turn, new_files)


def collect_leftovers(database: Database, artifacts: ArtifactStore) -> int:
    """Destroy leftovers of models with a batch that ended unpublished lately; return their number.

    Lists the files of these models only: listing them all is for `collect_orphans`.
    """
    with database.reading() as session:
        model_ids = _models_with_late_writers(session)
    count = 0
    for model_id in model_ids:
        try:
            count += _clear(database, artifacts, model_id, "sweep", partial(is_idle, model_id=model_id))
        except (OSError, StoreError) as error:
            log.warning("artifacts.leftovers_not_destroyed", model_id=str(model_id), reason=type(error).__name__)
    return count


def _models_with_late_writers(session: Session) -> list[uuid.UUID]:
    """Return models without a running batch, one of whose batches ended unpublished within the last hour."""
    unpublished = Batch.status.in_([BatchStatus.ABANDONED, BatchStatus.FAILED])
    since = current_time(session) - LATE_WRITERS
    running = select(Batch.model_id).where(Batch.status == BatchStatus.RUNNING)
    query = select(Batch.model_id).distinct().where(unpublished, Batch.finished_at > since)
    return list(session.scalars(query.where(Batch.model_id.not_in(running))))


def _clear(
    database: Database,
    artifacts: ArtifactStore,
    model_id: uuid.UUID,
    actor: str,
    may_destroy: Callable[[Session], bool],
    new_files: Collection[str] = (),
) -> int:
    artifacts.abort_uploads(model_id)
    files = set(artifacts.files(model_id))
    with database.reading() as session:
        _require_files(session, model_id, files, new_files)
        candidates = (files | _rows(session, model_id)) - _needed(session, model_id, new_files)
    count = 0
    for file in candidates:
        with database.writing() as session:
            if not may_destroy(session):
                break
            # Again: until now, another batch may have published the file.
            if file not in _needed(session, model_id, new_files):
                count += _destroy(session, artifacts, file, actor)
    return count


def _require_files(
    session: Session, model_id: uuid.UUID, files: Collection[StoredFile], new_files: Collection[str]
) -> None:
    """Raise an error if a needed file is missing: with an older database, files of newer versions seem unknown."""
    if any(StoredFile(model_id, digest) not in files for digest in new_files):
        raise ArtifactsUnavailable("a file of the new version was destroyed before it was published; try again")
    for digest in _current_digests(session, model_id):
        if StoredFile(model_id, digest) not in files:
            raise Gone(f"artifact {digest} is missing; restore it from a backup")


def _needed(session: Session, model_id: uuid.UUID, new_files: Collection[str]) -> set[StoredFile]:
    """Return the files of the current version and of its refresh, superseded ones not yet due, and never-seen rows."""
    belongs = or_(Version.posterior_digest == Artifact.digest, Version.dataset_digest == Artifact.digest)
    retained = (
        select(Artifact.digest)
        .join(Version, and_(Version.model_id == Artifact.model_id, belongs))
        .where(Artifact.model_id == model_id)
        .where(Artifact.destroyed_at.is_(None), Artifact.destroy_at > current_time(session))
    )
    never_seen = select(Model.never_seen_digest).where(Model.id == model_id, Model.never_seen_digest.is_not(None))
    others = (*session.scalars(retained), *session.scalars(never_seen), *_refresh_digests(session, model_id))
    names = {*_current_digests(session, model_id), *others, *new_files}
    return {StoredFile(model_id, name) for name in names}


def _refresh_digests(session: Session, model_id: uuid.UUID) -> list[str]:
    """Return the digests of an unfinished refresh. There is none while a batch runs: its claim ends it."""
    query = select(Refresh.checkpoint_digest, Refresh.posterior_digest)
    unfinished = query.where(Refresh.model_id == model_id, Refresh.finished_at.is_(None))
    return [digest for row in session.execute(unfinished) for digest in row if digest is not None]


def _current_digests(session: Session, model_id: uuid.UUID) -> tuple[str, ...]:
    """Return the digests of the current version; none if the model was destroyed."""
    current = select(Version).where(Version.model_id == model_id, Version.superseded_at.is_(None))
    version = session.scalar(current)
    return () if version is None else (version.posterior_digest, version.dataset_digest)


def _rows(session: Session, model_id: uuid.UUID) -> set[StoredFile]:
    """Return the files that have a row and are not destroyed. Some may never have been written."""
    query = select(Artifact.digest).where(Artifact.model_id == model_id, Artifact.destroyed_at.is_(None))
    return {StoredFile(model_id, digest) for digest in session.scalars(query)}


def _destroy(session: Session, artifacts: ArtifactStore, file: StoredFile, actor: str) -> bool:
    """Destroy a leftover unless somebody else just did."""
    row = None if file.is_draft else session.get(Artifact, (file.model_id, file.name), with_for_update=True)
    is_live = row is not None and row.destroyed_at is None
    if not is_live and artifacts.modified_at(file) is None:
        return False
    if file.is_draft:
        artifacts.destroy(file.model_id, file.name)
        audit.record(session, actor, "artifact.orphan_destroyed", file.model_id, kind="draft", name=file.name)
    else:
        destroy_file(session, artifacts, file, row, actor)
    return True
