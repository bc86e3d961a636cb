from __future__ import annotations

import uuid
from datetime import timedelta
from ipaddress import ip_network

import pytest
from sqlalchemy import update

from service.resources import Resources, visible_owner
from service.settings import Settings
from service.store.access.tokens import Caller, Limits, issue_token
from service.store.clock import current_time
from service.store.database import Database
from service.store.states import Role
from service.store.tables import Token
from tests import samples
from tests.service.conftest import Api


def limit(api: Api, database: Database, role: Role, limits: Limits) -> Api:
    """Return the same API with a limited token for the role."""
    with database.writing() as session:
        token = issue_token(session, f"limited-{role}", role, "test", limits=limits)
    return Api(api.url, {**api.tokens, role: token})


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


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_expired_token_is_refused(api: Api, database: Database) -> None:
    assert api.call(Role.OPERATOR, "GET", "/api/v1/jobs").status_code == 200
    with database.writing() as session:
        session.execute(update(Token).values(expires_at=current_time(session) - timedelta(seconds=1)))
    answer = api.call(Role.AUDITOR, "GET", "/api/v1/jobs")
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_token_is_refused_from_other_networks(api: Api, database: Database) -> None:
    elsewhere = limit(api, database, Role.OPERATOR, Limits(networks=(ip_network("10.0.0.0/8"),)))
    answer = elsewhere.call(Role.OPERATOR, "GET", "/api/v1/jobs")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:lethe:problem:token-limited")
    spoofed = elsewhere.call(Role.OPERATOR, "GET", "/api/v1/jobs", {"X-Forwarded-For": "10.0.0.1"})
    assert spoofed.status_code == 403
    local = limit(api, database, Role.AUDITOR, Limits(networks=(ip_network("10.0.0.0/8"), ip_network("127.0.0.0/8"))))
    assert local.call(Role.AUDITOR, "GET", "/api/v1/jobs").status_code == 200
    opendsr = limit(api, database, Role.COMPLIANCE, Limits(networks=(ip_network("10.0.0.0/8"),)))
    answer = opendsr.call(Role.COMPLIANCE, "GET", f"/v2/requests/{uuid.uuid4()}")
    assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (403, "forbidden")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_engineer_sees_only_the_models_of_its_token(api: Api, settings: Settings, database: Database) -> None:
    own, other = (samples.register_sample_set(settings, database) for _ in range(2))
    limited = limit(api, database, Role.ENGINEER, Limits(frozenset([own])))
    listed = limited.call(Role.ENGINEER, "GET", "/api/v1/models").json()["items"]
    assert [model["id"] for model in listed] == [str(own)]
    policy, reading = {"epsilon": 1e-6}, ("", "/versions", "/artifact", "/draws?count=1")
    for method, suffix in (*(("GET", suffix) for suffix in reading), ("PUT", "/policy")):
        answers = {}
        for model_id in (own, other, uuid.uuid4()):
            options = {"json": policy} if method == "PUT" else {}
            path = f"/api/v1/models/{model_id}{suffix}"
            answer = limited.call(Role.ENGINEER, method, path, **options)
            answers[model_id] = answer.status_code, answer.text.replace(str(model_id), "") if model_id != own else ""
        assert answers[own][0] == 200
        _, hidden, unknown = answers.values()
        assert hidden == unknown
        assert hidden[0] == 404
    for spelling in (str(other).upper(), f"urn:uuid:{other}", other.hex):
        assert limited.call(Role.ENGINEER, "GET", f"/api/v1/models/{spelling}").status_code == 404
    for path in ("/api/v1/models", "/api/v1/models/import"):
        answer = limited.call(Role.ENGINEER, "POST", path, json={"manifest": {}, "location": {}})
        assert answer.status_code in (403, 422)
    assert limited.call(Role.ENGINEER, "POST", "/api/v1/models", files={"manifest": b"{}"}).status_code == 403


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_compliance_token_reaches_only_its_models(api: Api, settings: Settings, database: Database) -> None:
    own, other = (samples.register_sample(settings, database) for _ in range(2))
    limited = limit(api, database, Role.COMPLIANCE, Limits(frozenset([own])))
    body = {"subjects": [samples.person(3)]}
    created = limited.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body).json()
    assert [model["model_id"] for model in created["models"]] == [str(own)]
    unknown, answers = uuid.uuid4(), []
    for model_id in (other, unknown):
        answer = limited.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={**body, "models": [str(model_id)]})
        answers.append((answer.status_code, answer.text.replace(str(model_id), "")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    unlimited = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body).json()
    assert limited.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{unlimited['id']}").status_code == 404
