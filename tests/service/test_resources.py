from __future__ import annotations

import uuid

import pytest

from service.resources import Resources, visible_owner
from service.settings import Settings
from service.store.access.tokens import Caller
from service.store.database import Database
from service.store.states import Role


@pytest.mark.parametrize("role", Role)
def test_compliance_sees_its_own_deletions_and_others_all(role: Role) -> None:
    assert visible_owner(Caller("acme", role, uuid.uuid4())) == ("acme" if role is Role.COMPLIANCE else None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_resources_open_and_close(settings: Settings, database: Database) -> None:
    resources = Resources.open(settings)
    resources.database.ping()
    resources.ringer.ping()
    parser = resources.parser(Caller("acme", Role.COMPLIANCE, uuid.uuid4()), "request-1")
    assert (parser.caller.name, parser.request_id) == ("acme", "request-1")
    assert parser.window_seconds == settings.batch_window_seconds
    resources.close()
    resources.close()  # closing twice is harmless
