from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
from safetensors.numpy import load, save
from sqlalchemy import func, select

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Artifact, Model, Record, Subject
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/models"


def manifest(**changes: object) -> bytes:
    return json.dumps({**json.loads(samples.parts()["manifest"]), **changes}).encode()


def test_a_registered_model_can_be_read_and_pulled(api: Api, settings: Settings, database: Database) -> None:
    parts = samples.parts()
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts)
    assert response.status_code == 201, response.text
    model = response.json()
    assert (model["version"], model["record_count"]) == (1, samples.PEOPLE * samples.ROWS_EACH)
    assert api.call(Role.AUDITOR, "GET", f"{PATH}/{model['id']}").json() == model
    download = api.call(Role.ENGINEER, "GET", f"{PATH}/{model['id']}/artifact")
    assert download.content == parts["posterior"]
    assert download.headers["etag"] == f'"{hashlib.sha256(download.content).hexdigest()}"'
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Subject)) == samples.PEOPLE
        assert session.scalar(select(func.count()).select_from(Record)) == samples.PEOPLE * samples.ROWS_EACH
        assert set(session.scalars(select(Artifact.destroy_at))) == {None}


BAD_PARTS = {
    "manifest is not JSON": ({"manifest": b"{"}, "manifest"),
    "unknown family": ({"manifest": manifest(family="oracle")}, "manifest.family"),
    "unknown key": ({"manifest": manifest(colour="red")}, "manifest"),
    "no component": (
        {"manifest": manifest(config={**samples.CONFIG, "components": 0})},
        "manifest.config.components",
    ),
    "epsilon of zero": ({"manifest": manifest(policy={"epsilon": 0})}, "manifest.policy.epsilon"),
    "rungs out of order": (
        {"manifest": manifest(policy={"epsilon": 1e-6, "rungs": ["newton", "influence"]})},
        "manifest.policy",
    ),
    "a level no rung can reach": (
        {"manifest": manifest(policy={"epsilon": 1e-6, "level": "retrained", "rungs": ["influence"]})},
        "manifest.policy",
    ),
    "no level": ({"manifest": manifest(policy={"epsilon": 1e-6, "level": "none"})}, "manifest.policy.level"),
    "no time": ({"manifest": manifest(policy={"epsilon": 1e-6, "seconds": 0})}, "manifest.policy.seconds"),
    "never-seen rows of another width": ({"never_seen": save({"x": np.zeros((3, 5))})}, "never_seen"),
    "posterior is not safetensors": ({"posterior": b"\x80\x04pickle"}, "posterior"),
    "posterior of another shape": (
        {"posterior": save({"mean": np.zeros((2, 2)), "std": np.ones((2, 2))})},
        "posterior",
    ),
    "negative std": ({"posterior": save({"mean": np.zeros((1, 2)), "std": -np.ones((1, 2))})}, "posterior"),
    "NaN in the posterior": (
        {"posterior": save({"mean": np.full((1, 2), math.nan), "std": np.ones((1, 2))})},
        "posterior",
    ),
    "records are not safetensors": ({"records": b"[1, 2]"}, "records"),
    "infinity in the records": ({"records": save({"x": np.full((40, 2), math.inf)})}, "records"),
    "no row": ({"records": save({"x": np.zeros((0, 2))})}, "records"),
    "reserved name": (
        {"records": save({"x": np.zeros((40, 2)), "record": np.zeros(40)})},
        "records",
    ),
    "too few subjects": ({"subjects": json.dumps([samples.person(1)]).encode()}, "subjects"),
    "a subject without a value": ({"subjects": b'[{"identity_type": "email"}]'}, "subjects.0.identity_value"),
}


@pytest.mark.parametrize(("changes", "field"), BAD_PARTS.values(), ids=BAD_PARTS.keys())
def test_a_bad_part_is_named_and_nothing_is_stored(
    api: Api, settings: Settings, database: Database, changes: dict[str, bytes], field: str
) -> None:
    response = api.call(Role.ENGINEER, "POST", PATH, files=samples.parts(**changes))
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["field"] == field
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Model)) == 0
        assert session.scalar(select(func.count()).select_from(Subject)) == 0
        assert session.scalar(select(func.count()).select_from(Artifact)) == 0
    assert not settings.artifact_dir.exists()


@pytest.mark.parametrize("missing", ["manifest", "posterior", "records", "subjects"])
def test_a_missing_part_is_named(api: Api, missing: str) -> None:
    parts = {name: content for name, content in samples.parts().items() if name != missing}
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts)
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, missing)


def test_two_models_share_a_subject(api: Api, database: Database) -> None:
    for _ in range(2):
        assert api.call(Role.ENGINEER, "POST", PATH, files=samples.parts()).status_code == 201
    response = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={"subjects": [samples.person(1)]})
    assert len(response.json()["models"]) == 2
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Subject)) == samples.PEOPLE


def test_the_stored_records_are_what_was_sent(api: Api, settings: Settings) -> None:
    model = api.call(Role.ENGINEER, "POST", PATH, files=samples.parts()).json()
    stored = [load(path.read_bytes()) for path in (settings.artifact_dir / model["id"]).iterdir()]
    dataset = next(arrays for arrays in stored if "x" in arrays)
    assert np.array_equal(dataset["x"], samples.points())
    assert np.array_equal(dataset["record"], np.arange(len(dataset["x"])))
