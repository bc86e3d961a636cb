"""Files that no row speaks of, and rows whose file is missing: what crashes and restored backups leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from service.store import audit
from service.store.artifacts.store import ADOPTION_GRACE, ORPHAN, ArtifactStore, StoredFile
from service.store.database import Database
from service.store.tables import Artifact, now

log = structlog.get_logger("artifacts")


@dataclass(frozen=True)
class Findings:
    drafts: int
    orphans: int
    missing: int


def collect_orphans(database: Database, artifacts: ArtifactStore) -> Findings:
    """Destroy old drafts, make orphans due for destruction, and say which files are missing.

    An orphan gets a row, and `destroy_due` does the rest: who stores the same bytes meanwhile is safe by that row.
    """
    # Rows before files: what is stored in between is young.
    rows = _live_rows(database)
    files = set(artifacts.files())
    strays = [file for file in files - rows.keys() if _is_old(artifacts, file)]
    drafts = [file for file in strays if file.is_draft]
    for draft in drafts:
        _destroy_draft(database, artifacts, draft)
    orphans = _surely_ours([file for file in strays if not file.is_draft], known=files & rows.keys())
    for orphan in orphans:
        _make_due(database, orphan)
    missing = [file for file, is_kept in rows.items() if is_kept and file not in files]
    return Findings(len(drafts), len(orphans), sum(_report_missing(database, file) for file in missing))


def _live_rows(database: Database) -> dict[StoredFile, bool]:
    """Each file that should be there, and whether it is to stay."""
    live = select(Artifact.model_id, Artifact.digest, Artifact.destroy_at).where(Artifact.destroyed_at.is_(None))
    with database.reading() as session:
        return {StoredFile(model, digest): destroy_at is None for model, digest, destroy_at in session.execute(live)}


def _is_old(artifacts: ArtifactStore, file: StoredFile) -> bool:
    modified_at = artifacts.modified_at(file)
    return modified_at is not None and modified_at < now() - ADOPTION_GRACE


def _surely_ours(orphans: list[StoredFile], known: Collection[StoredFile]) -> list[StoredFile]:
    """None if most is unknown: then the folder is another Lethe's, or the database the wrong one."""
    if len(orphans) > len(known):
        log.error("artifacts.mostly_unknown", unknown=len(orphans), known=len(known))
        return []
    return orphans


def _destroy_draft(database: Database, artifacts: ArtifactStore, draft: StoredFile) -> None:
    artifacts.destroy(draft.model_id, draft.name)
    with database.writing() as session:
        audit.record(session, "sweep", "artifact.orphan_destroyed", draft.model_id, kind="draft", name=draft.name)


def _make_due(database: Database, orphan: StoredFile) -> None:
    """Also of a file whose row says that it was destroyed: it has come back, from a backup for example."""
    key = orphan.model_id, orphan.name
    # Another sweep may have been faster.
    with contextlib.suppress(IntegrityError), database.writing() as session:
        row = session.get(Artifact, key, with_for_update=True)
        if row is None:
            session.add(Artifact(model_id=key[0], digest=key[1], kind=ORPHAN, size=0, destroy_at=now()))
        elif row.destroyed_at is not None:
            row.kind, row.destroy_at, row.destroyed_at = ORPHAN, now(), None


def _report_missing(database: Database, file: StoredFile) -> bool:
    """Unless it was superseded and destroyed while we looked."""
    with database.reading() as session:
        row = session.get(Artifact, (file.model_id, file.name))
    if row is None or row.destroy_at is not None:
        return False
    log.error("artifact.missing", model_id=str(file.model_id), digest=file.name, kind=row.kind)
    return True
