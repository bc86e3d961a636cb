"""Lists of models and versions, policies, and the roles of each route."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import destroy_due
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.states import Role
from service.store.tables import AuditEntry
from tests import samples
from tests.service.conftest import Api
from tests.service.routes.test_jobs import UNKNOWN, claim, publish_sample

PATH = "/api/v1/models"
POLICY = {
    "epsilon": 1e-3,
    "level": "estimated",
    "rungs": ["influence", "retrain"],
    "seconds": 60.0,
    "reference": "posterior",
}
E, O, A, C = Role.ENGINEER, Role.OPERATOR, Role.AUDITOR, Role.COMPLIANCE  # noqa: E741


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "", {E, O, A}),
        ("POST", "", {E}),
        ("GET", "/{model}", {E, O, A}),
        ("GET", "/{model}/versions", {E, O, A}),
        ("PUT", "/{model}/policy", {E, O}),
        ("GET", "/{model}/artifact", {E}),
        ("HEAD", "/{model}/artifact", {E}),
    ],
)
def test_roles_of_each_route(
    api: Api, settings: Settings, database: Database, method: str, path: str, allowed: set[Role]
) -> None:
    full_path = PATH + path.format(model=samples.register_sample(settings, database))
    options = {"POST": {"files": samples.parts()}, "PUT": {"json": POLICY}}.get(method, {})
    success = 201 if method == "POST" else 200
    expected = {None: 401, **{role: success if role in allowed else 403 for role in Role}}
    assert {role: api.call(role, method, full_path, **options).status_code for role in expected} == expected


def test_an_unknown_model_is_not_found(api: Api) -> None:
    for method, path in (("GET", "versions"), ("PUT", "policy"), ("GET", "artifact")):
        options = {"json": POLICY} if method == "PUT" else {}
        assert api.call(E, method, f"{PATH}/{UNKNOWN}/{path}", **options).status_code == 404


def test_the_list_has_each_model_once_newest_first(api: Api, settings: Settings, database: Database) -> None:
    ids = [str(samples.register_sample(settings, database)) for _ in range(3)]
    publish_sample(settings, database, uuid.UUID(ids[0]), 1)  # a second version does not list it twice
    first = api.call(A, "GET", PATH, params={"limit": 2}).json()
    second = api.call(A, "GET", PATH, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [model["id"] for model in first["items"] + second["items"]] == ids[::-1]
    assert second["next_cursor"] is None
    assert second["items"][0] == api.call(A, "GET", f"{PATH}/{ids[0]}").json()
    assert second["items"][0]["version"] == 2


def test_versions_show_when_they_were_superseded_and_destroyed(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.register_sample(settings, database)  # whose version is not listed
    with database.reading() as session:
        first = current_version(session, model_id)
    publish_sample(settings, database, model_id, 1)
    destroy_due(database, open_artifacts(settings))
    page = api.call(A, "GET", f"{PATH}/{model_id}/versions").json()
    new, old = page["items"]
    assert (new["number"], new["record_count"], new["superseded_at"]) == (2, 36, None)
    assert new["posterior_destroyed_at"] is None
    assert (old["number"], old["record_count"], old["readiness"]) == (1, 40, None)
    assert (old["posterior_sha256"], old["dataset_sha256"]) == (first.posterior_digest, first.dataset_digest)
    assert old["dataset_root"] == first.dataset_root != new["dataset_root"]
    assert new["dataset_root"] == api.call(A, "GET", f"{PATH}/{model_id}").json()["dataset_root"]
    assert old["created_at"] < old["superseded_at"] < old["posterior_destroyed_at"]
    assert page["next_cursor"] is None
    part = api.call(A, "GET", f"{PATH}/{model_id}/versions", params={"limit": 1}).json()
    assert part["items"] == [new]
    remainder = api.call(A, "GET", f"{PATH}/{model_id}/versions", params={"cursor": part["next_cursor"]}).json()
    assert remainder["items"] == [old]


def test_a_policy_is_changed_logged_and_used_by_the_next_claim(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    before = api.call(A, "GET", f"{PATH}/{model_id}").json()
    samples.request_deletion(settings, database, 1)
    earlier_claim = claim(database, model_id)
    for _ in range(2):  # the second changes nothing and leaves no entry
        response = api.call(O, "PUT", f"{PATH}/{model_id}/policy", json=POLICY)
        assert response.status_code == 200
        assert response.json() == {**before, "policy": POLICY}
    assert api.call(A, "GET", f"{PATH}/{model_id}").json()["policy"] == POLICY
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "policy.changed")).one()
    assert (entry.actor, entry.concerns) == ("acme-operator", str(model_id))
    assert entry.details == {"old": before["policy"], "new": POLICY}
    other = samples.register_sample(settings, database)
    api.call(E, "PUT", f"{PATH}/{other}/policy", json=POLICY)
    samples.request_deletion(settings, database, 2)
    assert claim(database, other).policy == POLICY
    assert earlier_claim.policy == before["policy"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"epsilon": 0}, "body.epsilon"),
        ({"level": "none"}, "body.level"),
        ({"rungs": ["retrain", "influence"]}, "body"),
        ({"level": "retrained", "rungs": ["newton"]}, "body"),
        ({"colour": "red"}, "body"),
    ],
)
def test_a_bad_policy_changes_nothing(
    api: Api, settings: Settings, database: Database, change: dict[str, object], field: str
) -> None:
    model_id = samples.register_sample(settings, database)
    response = api.call(E, "PUT", f"{PATH}/{model_id}/policy", json={**POLICY, **change})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, field)
    assert api.call(E, "GET", f"{PATH}/{model_id}").json()["policy"]["epsilon"] == 1e-6
