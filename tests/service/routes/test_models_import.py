"""Registration of other families and kinds, by upload and by location. Refused registrations store nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from sqlalchemy import func, select

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Artifact, AuditEntry, Model, Subject
from tests import samples
from tests.service.conftest import Api

PATH, IMPORT = "/api/v1/models", "/api/v1/models/import"
MANIFEST: dict[str, Any] = {
    "name": "slope",
    "family": "logistic-regression",
    "posterior": "samples",
    "config": {"dimensions": 2, "prior_std": 1.0},
    "policy": {"epsilon": 0.1, "level": "estimated"},
}
LOCATION = {"posterior": "slope/posterior", "records": "slope/records", "subjects": "slope/subjects"}
ROWS = np.array([[0.5, 1.0, 0.0], [0.25, -1.0, 1.0]])


def parts(**changes: bytes) -> dict[str, bytes]:
    complete = {
        "manifest": json.dumps(MANIFEST).encode(),
        "posterior": save({"samples": np.zeros((4, 2)), "chain": np.arange(4) % 2}),
        "records": save({"x": ROWS}),
        "subjects": json.dumps([samples.person(1), samples.person(2)]).encode(),
    }
    return {**complete, **changes}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "import" / "slope"
    folder.mkdir(parents=True)
    for name, content in parts(never_seen=save({"x": ROWS})).items():
        (folder / name).write_bytes(content)
    return tmp_path / "import"


def stored_rows(database: Database) -> int:
    with database.reading() as session:
        return sum(session.scalar(select(func.count()).select_from(t)) or 0 for t in (Model, Subject, Artifact))


def test_a_registered_model_has_its_family_kind_and_configuration(api: Api) -> None:
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts())
    assert response.status_code == 201, response.text
    model = response.json()
    assert {name: model[name] for name in ("family", "posterior", "config")} == {
        name: MANIFEST[name] for name in ("family", "posterior", "config")
    }
    download = api.call(Role.ENGINEER, "GET", f"{PATH}/{model['id']}/artifact")
    assert download.content == parts()["posterior"]


def test_keys_that_a_family_has_retired_are_accepted_and_not_stored(api: Api) -> None:
    manifest = {**MANIFEST, "config": {**MANIFEST["config"], "draws": 16, "seed": 0}}
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts(manifest=json.dumps(manifest).encode()))
    assert response.status_code == 201, response.text
    assert response.json()["config"] == MANIFEST["config"]


def test_without_an_import_root_nothing_is_read(api: Api, database: Database) -> None:
    response = api.call(Role.ENGINEER, "POST", IMPORT, json={"manifest": MANIFEST, "location": LOCATION})
    assert (response.status_code, response.json()["type"]) == (403, "urn:lethe:problem:imports-off")
    assert "LETHE_IMPORT_ROOT" in response.json()["detail"]
    assert stored_rows(database) == 0


class TestByLocation:
    @pytest.fixture
    def settings(self, settings: Settings, tmp_path: Path) -> Settings:
        return settings.model_copy(update={"import_root": tmp_path / "import"})

    def test_a_model_is_read_from_below_the_root(self, api: Api, root: Path, database: Database) -> None:
        body = {"manifest": MANIFEST, "location": {**LOCATION, "never_seen": "slope/never_seen"}}
        response = api.call(Role.ENGINEER, "POST", IMPORT, json=body)
        assert response.status_code == 201, response.text
        download = api.call(Role.ENGINEER, "GET", f"{PATH}/{response.json()['id']}/artifact")
        assert download.content == parts()["posterior"]
        with database.reading() as session:
            assert session.scalars(select(Model)).one().never_seen_digest is not None
            assert session.scalars(select(AuditEntry.actor)).all()[-1] == "acme-engineer"

    def test_only_engineers_may_import(self, api: Api, root: Path) -> None:
        body = {"manifest": MANIFEST, "location": LOCATION}
        expected = {None: 401, **{role: 201 if role == Role.ENGINEER else 403 for role in Role}}
        assert {role: api.call(role, "POST", IMPORT, json=body).status_code for role in expected} == expected

    @pytest.mark.parametrize(
        ("location", "field"),
        [
            ({"records": "../outside"}, "body.location.records"),
            ({"records": "/etc/passwd"}, "body.location.records"),
            ({"records": "slope/missing"}, "location.records"),
            ({"records": "out/outside"}, "location.records"),
            ({"records": "slope/subjects"}, "records"),
            ({"never_seen": "slope/posterior"}, "never_seen"),
            ({"extra": "slope/records"}, "body.location"),
        ],
    )
    def test_a_bad_location_is_refused_and_nothing_is_stored(
        self, api: Api, root: Path, database: Database, location: dict[str, str], field: str
    ) -> None:
        (root.parent / "outside").write_bytes(parts()["records"])
        (root / "out").symlink_to(root.parent)
        body = {"manifest": MANIFEST, "location": {**LOCATION, **location}}
        response = api.call(Role.ENGINEER, "POST", IMPORT, json=body)
        assert (response.status_code, response.json()["errors"][0]["field"]) == (422, field), response.text
        assert stored_rows(database) == 0


def test_a_policy_that_its_kind_cannot_meet_is_refused(api: Api, database: Database) -> None:
    model_id = api.call(Role.ENGINEER, "POST", PATH, files=parts()).json()["id"]
    policy = {"epsilon": 0.1, "level": "proved", "rungs": ["influence"]}
    response = api.call(Role.OPERATOR, "PUT", f"{PATH}/{model_id}/policy", json=policy)
    assert (response.status_code, response.json()["type"]) == (422, "urn:lethe:problem:invalid-policy")
    assert api.call(Role.OPERATOR, "GET", f"{PATH}/{model_id}").json()["policy"]["level"] == "estimated"
    policy["rungs"] = ["influence", "retrain"]
    assert api.call(Role.OPERATOR, "PUT", f"{PATH}/{model_id}/policy", json=policy).status_code == 200


WRONG_MANIFESTS = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(sorted(MANIFEST)).map(lambda key: {k: v for k, v in MANIFEST.items() if k != key and k != "name"}),
    st.tuples(
        st.sampled_from(["family", "config", "policy", "posterior"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers()),
    ).map(lambda change: {**MANIFEST, change[0]: change[1]}),
)
TENSORS = st.dictionaries(
    st.sampled_from(["samples", "chain", "mean", "std", "x"]),
    st.tuples(st.sampled_from(["f8", "f4", "i8"]), st.lists(st.integers(0, 3), max_size=3)).map(
        lambda spec: np.ones(spec[1], spec[0])
    ),
    max_size=2,
)
WRONG = st.one_of(
    WRONG_MANIFESTS.map(lambda content: {"manifest": json.dumps(content).encode()}),
    TENSORS.filter(lambda t: set(t) != {"samples", "chain"}).map(lambda t: {"posterior": save(t)}),
    TENSORS.filter(lambda t: t.get("x", np.ones(0)).shape != (2, 3)).map(lambda t: {"records": save(t)}),
    st.sampled_from(["manifest", "posterior", "records", "subjects"]).flatmap(
        lambda name: st.binary(max_size=200).map(lambda content: {name: content})
    ),
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WRONG)
def test_whatever_is_malformed_gives_422_and_stores_nothing(
    api: Api, database: Database, changes: dict[str, bytes]
) -> None:
    response = api.call(Role.ENGINEER, "POST", PATH, files=parts(**changes))
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["field"].split(".")[0] in parts()
    assert stored_rows(database) == 0
