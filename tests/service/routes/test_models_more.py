"""Models: the list, versions, the policy, and parts of the artifact."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import select
from starlette.exceptions import HTTPException

from service.logs import configure_logging
from service.routes.models import byte_range
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
POLICY = {"epsilon": 1e-3, "level": "estimated", "rungs": ["influence", "retrain"], "seconds": 60.0}
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
def test_each_role_at_each_route(
    api: Api, settings: Settings, database: Database, method: str, path: str, allowed: set[Role]
) -> None:
    whole = PATH + path.format(model=samples.register_sample(settings, database))
    sent = {"POST": {"files": samples.parts()}, "PUT": {"json": POLICY}}.get(method, {})
    success = 201 if method == "POST" else 200
    expected = {None: 401, **{role: success if role in allowed else 403 for role in Role}}
    assert {role: api.call(role, method, whole, **sent).status_code for role in expected} == expected


def test_an_unknown_model_is_not_found(api: Api) -> None:
    for method, path in (("GET", "versions"), ("PUT", "policy"), ("GET", "artifact")):
        sent = {"json": POLICY} if method == "PUT" else {}
        assert api.call(E, method, f"{PATH}/{UNKNOWN}/{path}", **sent).status_code == 404


def test_the_list_has_each_model_once_newest_first(api: Api, settings: Settings, database: Database) -> None:
    ids = [str(samples.register_sample(settings, database)) for _ in range(3)]
    publish_sample(settings, database, uuid.UUID(ids[0]), 1)  # a second version does not list it twice
    first = api.call(A, "GET", PATH, params={"limit": 2}).json()
    second = api.call(A, "GET", PATH, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [model["id"] for model in first["items"] + second["items"]] == ids[::-1]
    assert second["next_cursor"] is None
    assert second["items"][0] == api.call(A, "GET", f"{PATH}/{ids[0]}").json()
    assert second["items"][0]["version"] == 2


def test_versions_tell_what_became_of_them(api: Api, settings: Settings, database: Database) -> None:
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
    rest = api.call(A, "GET", f"{PATH}/{model_id}/versions", params={"cursor": part["next_cursor"]}).json()
    assert rest["items"] == [old]


def test_a_policy_is_changed_logged_and_used_by_the_next_claim(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    before = api.call(A, "GET", f"{PATH}/{model_id}").json()
    samples.request_deletion(settings, database, 1)
    held = claim(database, model_id)
    for _ in range(2):  # the second changes nothing and leaves no entry
        answer = api.call(O, "PUT", f"{PATH}/{model_id}/policy", json=POLICY)
        assert answer.status_code == 200
        assert answer.json() == {**before, "policy": POLICY}
    assert api.call(A, "GET", f"{PATH}/{model_id}").json()["policy"] == POLICY
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "policy.changed")).one()
    assert (entry.actor, entry.concerns) == ("acme-operator", str(model_id))
    assert entry.details == {"old": before["policy"], "new": POLICY}
    other = samples.register_sample(settings, database)
    api.call(E, "PUT", f"{PATH}/{other}/policy", json=POLICY)
    samples.request_deletion(settings, database, 2)
    assert claim(database, other).policy == POLICY
    assert held.policy == before["policy"]


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
    answer = api.call(E, "PUT", f"{PATH}/{model_id}/policy", json={**POLICY, **change})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert api.call(E, "GET", f"{PATH}/{model_id}").json()["policy"]["epsilon"] == 1e-6


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("Bytes=2-5", (2, 6)),
        ("bytes=7-", (7, 10)),
        ("bytes=7-99", (7, 10)),
        ("bytes=9-9", (9, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=10-", 416),
        ("bytes=10-12", 416),
        ("bytes=-0", 416),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("bytes=0-1,4-5", None),
        ("bytes=a-b", None),
        ("bytes=٣-٤", None),
        ("bytes=" + "9" * 5000 + "-", None),
        ("rows=0-1", None),
        ("", None),
    ],
)
def test_ranges(header: str, expected: tuple[int, int] | int | None) -> None:
    if expected == 416:
        with pytest.raises(HTTPException) as refusal:
            byte_range(header, 10)
        assert (refusal.value.status_code, refusal.value.headers) == (416, {"Content-Range": "bytes */10"})
    else:
        found = byte_range(header, 10)
        assert (found and (found.start, found.stop)) == expected


def test_an_artifact_in_parts(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(E, "GET", path)
    etag, size = whole.headers["etag"], len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert "content-range" not in whole.headers
    parts: list[tuple[dict[str, str], slice, str]] = [
        ({"Range": "bytes=3-8"}, slice(3, 9), f"bytes 3-8/{size}"),
        ({"Range": "bytes=-5"}, slice(-5, None), f"bytes {size - 5}-{size - 1}/{size}"),
        ({"Range": "bytes=3-8", "If-Range": etag}, slice(3, 9), f"bytes 3-8/{size}"),
    ]
    for headers, part, content_range in parts:
        answer = api.call(E, "GET", path, headers=headers)
        assert (answer.status_code, answer.content) == (206, whole.content[part]), headers
        assert (answer.headers["etag"], answer.headers["content-range"]) == (etag, content_range)


def test_an_artifact_whole_or_not_at_all(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(E, "GET", path)
    etag = whole.headers["etag"]
    cases: list[tuple[dict[str, str], int, bytes]] = [
        ({"Range": "bytes=3-8", "If-Range": '"another"'}, 200, whole.content),
        ({"Range": "bytes=3-8", "If-Range": f"W/{etag}"}, 200, whole.content),
        ({"Range": "bytes=0-1,3-4"}, 200, whole.content),
        ({"If-None-Match": etag}, 304, b""),
        ({"If-None-Match": f'"another", W/{etag}'}, 304, b""),
        ({"If-None-Match": "*"}, 304, b""),
        ({"If-None-Match": etag, "Range": "bytes=3-8"}, 304, b""),
        ({"If-None-Match": '"another"'}, 200, whole.content),
    ]
    for headers, status, content in cases:
        answer = api.call(E, "GET", path, headers=headers)
        assert (answer.status_code, answer.content) == (status, content), headers
        assert answer.headers["etag"] == etag
        assert "content-range" not in answer.headers


def test_a_range_behind_the_end_is_a_problem(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    size = len(api.call(E, "GET", path).content)
    answer = api.call(E, "GET", path, headers={"Range": f"bytes={size}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:lethe:problem:range-not-satisfiable"
    stale = {"Range": f"bytes={size}-", "If-Range": '"another"'}
    assert api.call(E, "GET", path, headers=stale).status_code == 200


def test_head_tells_the_same_without_the_content(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(E, "GET", path)
    for headers in ({}, {"Range": "bytes=0-1"}):  # a range means something to GET only
        head = api.call(E, "HEAD", path, headers=headers)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("etag", "content-length", "content-type", "accept-ranges"):
            assert head.headers[name] == whole.headers[name]
    assert api.call(E, "HEAD", path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_not_a_byte_of_a_damaged_file_is_sent(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        digest = current_version(session, model_id).posterior_digest
    file = settings.artifact_dir / str(model_id) / digest
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    configure_logging("INFO")  # as in earnest: unconfigured, the traceback is drawn for most of a minute
    for headers in ({}, {"Range": "bytes=0-3"}):
        answer = api.call(E, "GET", f"{PATH}/{model_id}/artifact", headers=headers)
        assert answer.status_code == 500
        assert sound[:4] not in answer.content
