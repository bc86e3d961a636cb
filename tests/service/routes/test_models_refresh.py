from __future__ import annotations

import redis

from service.settings import Settings
from service.store.batches.doorbell import QUEUES, REFRESH_TASK
from service.store.database import Database
from service.store.refreshes.lifecycle import fail_refresh, renew_refresh
from service.store.states import Device, Role
from tests import samples
from tests.service.conftest import Api
from tests.service.store.refreshes.worn import claim, worn_model
from tests.waiting import wait_until

PATH = "/api/v1/models"


def test_a_model_shows_its_effective_draws_and_its_refresh(api: Api, settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database, effective=123.5)
    model = api.call(Role.AUDITOR, "GET", f"{PATH}/{model_id}").json()
    assert (model["draws"], model["effective_draws"], model["refresh"]) == (samples.WORN_DRAWS, 123.5, None)
    claimed = claim(database, model_id)
    with database.writing() as session:
        renew_refresh(session, claimed, 30.0, "sampling", 40.0)
    running = api.call(Role.AUDITOR, "GET", f"{PATH}/{model_id}").json()["refresh"]
    assert (running["id"], running["status"]) == (str(claimed.refresh_id), "running")
    assert (running["phase"], running["percent"], running["finished_at"]) == ("sampling", 40.0, None)
    with database.writing() as session:
        fail_refresh(session, claimed, "the draws are too narrow")
    (listed,) = api.call(Role.OPERATOR, "GET", PATH).json()["items"]
    assert (listed["refresh"]["status"], listed["refresh"]["failure"]) == ("failed", "the draws are too narrow")
    (version,) = api.call(Role.OPERATOR, "GET", f"{PATH}/{model_id}/versions").json()["items"]
    assert (version["draws"], version["effective_draws"]) == (samples.WORN_DRAWS, 123.5)
    (job,) = api.call(Role.OPERATOR, "GET", "/api/v1/jobs").json()["items"]
    assert (job["kind"], job["status"], job["failure"]) == ("refresh", "failed", "the draws are too narrow")


def test_an_operator_requests_a_refresh_and_a_worker_is_woken(api: Api, settings: Settings, database: Database) -> None:
    model_id = worn_model(settings, database)
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as queue:
        queue.delete(QUEUES[Device.CPU])
        first, second = (api.call(Role.OPERATOR, "POST", f"{PATH}/{model_id}/refresh") for _ in range(2))
        assert (first.status_code, second.status_code) == (202, 202)
        assert (first.json()["id"], first.json()["status"]) == (second.json()["id"], "waiting")
        message = wait_until(lambda: queue.lindex(QUEUES[Device.CPU], 0), "the doorbell rang")
        assert REFRESH_TASK.encode() in message
        queue.delete(QUEUES[Device.CPU])
    job = api.call(Role.OPERATOR, "GET", f"/api/v1/jobs/{first.json()['id']}").json()
    assert (job["kind"], job["status"], job["worker"], job["deletions"]) == ("refresh", "waiting", None, [])


def test_a_model_without_chains_is_refused(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    refused = api.call(Role.OPERATOR, "POST", f"{PATH}/{model_id}/refresh")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:lethe:problem:not-refreshable")
