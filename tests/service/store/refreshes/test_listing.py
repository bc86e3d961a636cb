from __future__ import annotations

from service.settings import Settings
from service.store.database import Database
from service.store.refreshes.lifecycle import fail_refresh
from service.store.refreshes.listing import latest_refreshes
from service.store.refreshes.requests import request_refresh
from tests.service.store.refreshes.worn import claim, worn_model


def test_the_latest_refresh_of_each_model(settings: Settings, database: Database) -> None:
    model_id, other_id, third_id = (worn_model(settings, database) for _ in range(3))
    failed = claim(database, model_id)
    with database.writing() as session:
        fail_refresh(session, failed, "it broke")
    with database.reading() as session:
        assert latest_refreshes(session, [model_id])[model_id].failure == "it broke"
    with database.writing() as session:
        second = request_refresh(session, model_id, "operator").id
    other = claim(database, other_id)
    with database.reading() as session:
        latest = latest_refreshes(session, [model_id, other_id, third_id])
    assert {key: refresh.id for key, refresh in latest.items()} == {model_id: second, other_id: other.refresh_id}
