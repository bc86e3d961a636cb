"""Registration of networks: rows in float32, samples, and policies that they can meet."""

from __future__ import annotations

import json
import uuid
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/models"
CONFIG = {"dimensions": 3, "hidden": 4, "classes": 2}
PARAMETERS, ROWS = 4 * 4 + 5 * 2, 80


def parts(**changes: Any) -> dict[str, bytes]:
    rows = np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
    rows[:, -1] = rows[:, 0] > 0
    manifest = {"name": "m", "family": "mlp", "config": CONFIG, "policy": {"epsilon": 0.1, "level": "estimated"}}
    return {
        "manifest": json.dumps({**manifest, **changes}).encode(),
        "posterior": save({"mean": np.zeros(PARAMETERS), "std": np.ones(PARAMETERS)}),
        "records": save({"x": rows}),
        "subjects": json.dumps([samples.person(row) for row in range(ROWS)]).encode(),
    }


def test_rows_of_a_network_are_stored_as_they_are_sent(api: Api, settings: Settings, database: Database) -> None:
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts())
    assert response.status_code == 201, response.text
    model, model_id = response.json(), uuid.UUID(response.json()["id"])
    assert (model["family"], model["config"]) == ("mlp", {**CONFIG, "prior_std": 0.15, "activation": "relu"})
    with database.reading() as session:
        digest = current_version(session, model_id).dataset_digest
    stored = load(open_artifacts(settings).get(model_id, digest))["x"]
    assert stored.dtype == np.float32
    assert np.array_equal(stored, load(parts()["records"])["x"])


def test_samples_of_a_network_are_registered(api: Api) -> None:
    draws = np.random.default_rng(2).normal(size=(6, PARAMETERS))
    policy = {"epsilon": 0.1, "level": "estimated", "rungs": ["reweight", "retrain"], "reference": "stored draws"}
    files = parts(posterior="samples", policy=policy)
    files["posterior"] = save({"samples": draws, "chain": np.arange(6) % 2})
    registered = api.call(Role.ENGINEER, "POST", PATH, files=files)
    assert registered.status_code == 201, registered.text
    model = registered.json()
    assert (model["posterior"], model["policy"]) == ("samples", {**policy, "seconds": None})
    stored = load(api.call(Role.ENGINEER, "GET", f"{PATH}/{model['id']}/artifact").content)
    assert np.array_equal(stored["samples"], draws)
    files["posterior"] = save({"samples": draws[:, 1:], "chain": np.arange(6) % 2})
    refused = api.call(Role.ENGINEER, "POST", PATH, files=files)
    assert (refused.status_code, f"rows or more of {PARAMETERS} parameters" in refused.text) == (422, True)


def test_unreachable_policies_of_networks_are_refused(api: Api) -> None:
    model_id = api.call(Role.ENGINEER, "POST", PATH, files=parts()).json()["id"]
    policy = {"epsilon": 0.1, "level": "proved", "rungs": ["influence", "warm"]}
    refused = api.call(Role.OPERATOR, "PUT", f"{PATH}/{model_id}/policy", json=policy)
    assert (refused.status_code, "certificates of networks are estimated" in refused.text) == (422, True)
    allowed = api.call(
        Role.OPERATOR, "PUT", f"{PATH}/{model_id}/policy", json={**policy, "rungs": ["influence", "retrain"]}
    )
    assert allowed.json()["policy"]["level"] == "proved"
