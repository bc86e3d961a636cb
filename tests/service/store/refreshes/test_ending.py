from __future__ import annotations

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.refreshes.ending import abandon_refresh, end_refresh, find_unfinished
from service.store.refreshes.files import save_refresh_file
from service.store.states import RefreshStatus
from service.store.tables import Artifact, AuditEntry, now
from tests.service.store.refreshes.worn import claim, worn_model


@pytest.mark.parametrize("status", [RefreshStatus.FAILED, RefreshStatus.ABANDONED, RefreshStatus.PUBLISHED])
def test_the_files_of_a_refresh_end_with_it(settings: Settings, database: Database, status: RefreshStatus) -> None:
    model_id, artifacts = worn_model(settings, database), open_artifacts(settings)
    claimed = claim(database, model_id)
    digests = {
        kind: save_refresh_file(database, artifacts, claimed, kind, kind.encode())
        for kind in ("checkpoint", "posterior")
    }
    with database.writing() as session:
        refresh = find_unfinished(session, model_id)
        assert refresh is not None
        end_refresh(session, refresh, status, "why")
    with database.reading() as session:
        due = {
            kind: session.get_one(Artifact, (model_id, digest)).destroy_at is not None
            for kind, digest in digests.items()
        }
        assert find_unfinished(session, model_id) is None
    assert due == {"checkpoint": True, "posterior": status != RefreshStatus.PUBLISHED}


def test_only_an_unfinished_refresh_is_abandoned(settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    claimed = claim(database, model_id)
    for _ in range(2):
        with database.writing() as session:
            abandon_refresh(session, model_id, "worker-2", "deletions came first")
    with database.reading() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "refresh.abandoned"))
    assert (entry.actor, entry.concerns) == ("worker-2", str(claimed.refresh_id))
    assert entry.details == {"model": str(model_id), "reason": "deletions came first"}
    assert entry.at <= now()
