"""Orphaned files (files without a row) and rows without a file: left behind by crashes and restored backups."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from service.store import audit
from service.store.artifacts.store import ADOPTION_GRACE, ORPHAN, ArtifactStore, StoredFile
from service.store.clock import current_time
from service.store.database import Database
from service.store.tables import Artifact

log = structlog.get_logger("artifacts")


@dataclass(frozen=True)
class OrphanReport:
    """Numbers of destroyed drafts, orphans made due, and missing files."""

    drafts: int
    orphans: int
    missing: int


def collect_orphans(database: Database, artifacts: ArtifactStore) -> OrphanReport:
    """Destroy old drafts, make orphans due for destruction, and log missing files.

    An orphan gets a row and is destroyed by `destroy_due`. The row protects a process that stores the same bytes
    meanwhile.
    """
    # Rows before files: a file stored in between is young, and young files are left alone.
    rows = _live_rows(database)
    files = set(artifacts.files())
    with database.reading() as session:
        limit = current_time(session) - ADOPTION_GRACE
    without_row = [file for file in files - rows.keys() if _is_older(artifacts, file, limit)]
    drafts = [file for file in without_row if file.is_draft]
    for draft in drafts:
        _destroy_draft(database, artifacts, draft)
    orphans = [file for file in without_row if not file.is_draft]
    if _is_foreign(orphans, files & rows.keys()):
        orphans = []
    for orphan in orphans:
        _make_due(database, orphan)
    missing = [file for file, is_retained in rows.items() if is_retained and file not in files]
    return OrphanReport(len(drafts), len(orphans), sum(_report_missing(database, file) for file in missing))


def _live_rows(database: Database) -> dict[StoredFile, bool]:
    """Return each file that should exist, and whether it is retained (not scheduled for destruction)."""
    live = select(Artifact.model_id, Artifact.digest, Artifact.destroy_at).where(Artifact.destroyed_at.is_(None))
    with database.reading() as session:
        return {StoredFile(model, digest): destroy_at is None for model, digest, destroy_at in session.execute(live)}


def _is_older(artifacts: ArtifactStore, file: StoredFile, limit: datetime) -> bool:
    modified_at = artifacts.modified_at(file)
    return modified_at is not None and modified_at < limit


def _is_foreign(orphans: Collection[StoredFile], own_files: Collection[StoredFile]) -> bool:
    """Whether most files are orphans: then the folder belongs to another Lethe, or the database is the wrong one."""
    if len(orphans) <= len(own_files):
        return False
    log.error("artifacts.mostly_unknown", unknown=len(orphans), known=len(own_files))
    return True


def _destroy_draft(database: Database, artifacts: ArtifactStore, draft: StoredFile) -> None:
    artifacts.destroy(draft.model_id, draft.name)
    with database.writing() as session:
        audit.record(session, "sweep", "artifact.orphan_destroyed", draft.model_id, kind="draft", name=draft.name)


def _make_due(database: Database, orphan: StoredFile) -> None:
    """Schedule an orphan's destruction. Its row may say it was destroyed: a backup can bring a file back."""
    key = orphan.model_id, orphan.name
    # Another sweep may have added the row first.
    with contextlib.suppress(IntegrityError), database.writing() as session:
        row, due = session.get(Artifact, key, with_for_update=True), current_time(session)
        if row is None:
            session.add(Artifact(model_id=key[0], digest=key[1], kind=ORPHAN, size=0, created_at=due, destroy_at=due))
        elif row.destroyed_at is not None:
            row.kind, row.destroy_at, row.destroyed_at = ORPHAN, due, None


def _report_missing(database: Database, file: StoredFile) -> bool:
    """Log a missing file and return True, unless it was superseded and destroyed meanwhile."""
    with database.reading() as session:
        row = session.get(Artifact, (file.model_id, file.name))
    if row is None or row.destroy_at is not None:
        return False
    log.error("artifact.missing", model_id=str(file.model_id), digest=file.name, kind=row.kind)
    return True
