from __future__ import annotations

import uuid

import numpy as np
import pytest
from safetensors.numpy import load

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_jobs import UNKNOWN

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def draws_path(model_id: uuid.UUID | str) -> str:
    return f"/api/v1/models/{model_id}/draws"


def test_draws_come_without_chains_and_weights(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample_set(settings, database)
    answer = api.call(Role.ENGINEER, "GET", draws_path(model_id), params={"count": 30, "seed": 5})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/octet-stream")
    tensors = load(answer.content)
    assert set(tensors) == {"samples"}
    stored = load(api.call(Role.ENGINEER, "GET", f"/api/v1/models/{model_id}/artifact").content)["samples"]
    assert tensors["samples"].shape == (30, 2)
    assert set(map(tuple, tensors["samples"])) <= set(map(tuple, stored))
    again = api.call(Role.ENGINEER, "GET", draws_path(model_id), params={"count": 30, "seed": 5})
    other = api.call(Role.ENGINEER, "GET", draws_path(model_id), params={"count": 30})
    assert again.content == answer.content
    assert not np.array_equal(load(other.content)["samples"], tensors["samples"])


def test_cached_draws_are_not_sent_again(api: Api, settings: Settings, database: Database) -> None:
    path = draws_path(samples.register_sample_set(settings, database))
    etag = api.call(Role.ENGINEER, "GET", path, params={"count": 3}).headers["etag"]
    for params, status in (({"count": 3}, 304), ({"count": 4}, 200), ({"count": 3, "seed": 1}, 200)):
        answer = api.call(Role.ENGINEER, "GET", path, params=params, headers={"If-None-Match": etag})
        assert answer.status_code == status, params


def test_more_draws_than_a_tenth_are_refused(api: Api, settings: Settings, database: Database) -> None:
    path = draws_path(samples.register_sample_set(settings, database))
    assert api.call(Role.ENGINEER, "GET", path, params={"count": 200}).status_code == 200
    refused = api.call(Role.ENGINEER, "GET", path, params={"count": 201})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:lethe:problem:not-drawable")
    assert "can spare, 200" in refused.json()["detail"]


def test_a_variational_posterior_has_none(api: Api, settings: Settings, database: Database) -> None:
    refused = api.call(
        Role.ENGINEER, "GET", draws_path(samples.register_sample(settings, database)), params={"count": 1}
    )
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:lethe:problem:not-drawable")
    assert refused.json()["detail"].endswith("/artifact")


@pytest.mark.parametrize("query", ["", "count=0", "count=many", "count=2&seed=-1", "count=100001", "count=2&more=1"])
def test_a_malformed_query_is_refused(api: Api, query: str) -> None:
    assert api.call(Role.ENGINEER, "GET", f"{draws_path(UNKNOWN)}?{query}").status_code == 422


def test_an_unknown_model_is_not_found(api: Api) -> None:
    assert api.call(Role.ENGINEER, "GET", draws_path(UNKNOWN), params={"count": 1}).status_code == 404
