"""Files of a refresh: its newest checkpoint, and at the end the new posterior. All of them are fenced by the claim."""

from __future__ import annotations

from typing import Literal

from service.store.artifacts.store import ArtifactStore, adopt, write_ahead
from service.store.database import Database
from service.store.datasets.tensor_files import Piece
from service.store.refreshes.ending import schedule_destruction
from service.store.refreshes.lifecycle import RefreshClaim, require_held

FileKind = Literal["checkpoint", "posterior"]


def save_refresh_file(
    database: Database, artifacts: ArtifactStore, claim: RefreshClaim, kind: FileKind, *pieces: Piece
) -> str:
    """Store a file and return its digest. It is kept until the refresh ends or saves another one of its kind.

    Raise LeaseLost, and leave no file, if the worker no longer holds the refresh.
    """
    digest = write_ahead(database, artifacts, claim.model_id, kind, *pieces, refresh_claim_id=claim.claim_id)
    column = f"{kind}_digest"
    with database.writing() as session:
        refresh = require_held(session, claim)
        previous = getattr(refresh, column)
        setattr(refresh, column, digest)
        adopt(session, claim.model_id, digest)
        if previous not in (None, digest):
            schedule_destruction(session, claim.model_id, previous)
    return digest
