"""Refreshes into which a test can reach: an action at an iteration, and heartbeats that do not wait for a second."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import select

from ml.inference import refreshing
from ml.inference.chains import Chains
from ml.inference.hmc import HMC
from ml.inference.refreshing import RefreshState
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.tables import AuditEntry, Refresh, Version
from worker import refresh, refresh_lease

NEVER = 10_000
# On a Gaussian every trajectory is exact, however long its steps.
QUICK = Chains(HMC(steps=1, tuning=10), iterations=120, burn_in=20, preconditioned=True)


@pytest.fixture
def quick_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short chains with fixed random numbers."""
    monkeypatch.setattr(refreshing, "SAFE_HMC", QUICK)
    monkeypatch.setattr(refresh, "_seed", lambda claim: 1)


def act_at(monkeypatch: pytest.MonkeyPatch, iteration: int, action: Callable[[], object]) -> list[RefreshState]:
    """Store a checkpoint at this iteration of the next refresh, then run the action. Return a list for its states."""
    states: list[RefreshState] = []
    original = refreshing.continue_refresh

    def acting(*args: object) -> Iterator[RefreshState]:
        for number, state in enumerate(original(*args), 1):  # type: ignore[arg-type]
            states.append(state)
            if number == iteration:
                monkeypatch.setattr(refresh, "CHECKPOINT_SECONDS", 0.0)
            yield state
            if number == iteration:
                monkeypatch.setattr(refresh, "CHECKPOINT_SECONDS", 10.0)
                action()

    monkeypatch.setattr(refresh, "continue_refresh", acting)
    monkeypatch.setattr(refresh_lease, "BEAT_SECONDS", 0.02)
    return states


def only_refresh(database: Database) -> Refresh:
    with database.reading() as session:
        return session.scalars(select(Refresh)).one()


def current(database: Database, model_id: uuid.UUID) -> Version:
    with database.reading() as session:
        return current_version(session, model_id)


def actions_of(database: Database, prefix: str) -> list[str]:
    """Return the actions of the audit entries with this prefix, in order."""
    with database.reading() as session:
        query = select(AuditEntry.action).where(AuditEntry.action.startswith(prefix)).order_by(AuditEntry.id)
        return list(session.scalars(query))
