"""Whoever changes the list of keys in the database contradicts the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from lethe.key_history import KeyHistory
from lethe.verify import Rejected
from lethe.verify.keys import load_keys
from service.store.database import Database
from service.store.log.sequencing import entry_leaf
from service.store.signing import keys
from service.store.tables import AuditEntry
from tests.bundles import SIGNER, key_list

REVOKED_AT = datetime(2026, 11, 16, 8, tzinfo=UTC)
STATEMENT_KEY = SIGNER.key_id


def added(session: Session) -> None:
    for use, public_key in SIGNER.public_keys.items():
        keys.add(session, public_key, use, actor="lethe")


def history_of(database: Database, *changes: Callable[[Session], None]) -> KeyHistory:
    for change in (added, *changes):
        with database.writing() as session:
            change(session)
    history = KeyHistory()
    with database.reading() as session:
        for entry in session.scalars(select(AuditEntry).order_by(AuditEntry.id)):
            history.read_entry(json.loads(entry_leaf(entry)))
    return history


def retire(session: Session) -> None:
    keys.retire(session, STATEMENT_KEY, actor="ops")


def revoke(session: Session) -> None:
    keys.revoke(session, STATEMENT_KEY, REVOKED_AT, "leaked", actor="ops")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_list_that_agrees_is_accepted(database: Database) -> None:
    history = history_of(database, retire, revoke)
    dates = {"retired_at": REVOKED_AT.isoformat(), "revoked_at": REVOKED_AT.isoformat()}
    history.compare(load_keys(key_list(statements=dates)))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("change", "dates", "reason"),
    [
        (retire, {}, "was retired, but the list"),
        (revoke, {}, "was revoked from 2026-11-16T08:00:00"),
        (revoke, {"revoked_at": (REVOKED_AT + timedelta(seconds=1)).isoformat()}, "was revoked from"),
    ],
    ids=["retirement-removed", "revocation-removed", "revocation-moved"],
)
def test_a_date_that_was_removed_from_the_list_is_found(
    database: Database, change: Callable[[Session], None], dates: dict[str, str], reason: str
) -> None:
    with pytest.raises(Rejected, match=reason):
        history_of(database, change).compare(load_keys(key_list(statements=dates)))


def test_a_key_that_the_log_does_not_know_is_found() -> None:
    with pytest.raises(Rejected, match="does not record its addition"):
        KeyHistory().compare(load_keys(key_list()))
