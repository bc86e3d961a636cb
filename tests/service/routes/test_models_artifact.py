"""Download of the current posterior: ranges, conditional requests, damaged files."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from service.routes.models import byte_range
from service.settings import Settings
from service.store.database import Database
from service.store.models.registry import current_version
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

PATH = "/api/v1/models"


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
def test_range_headers(header: str, expected: tuple[int, int] | int | None) -> None:
    if expected == 416:
        with pytest.raises(HTTPException) as refusal:
            byte_range(header, 10)
        assert (refusal.value.status_code, refusal.value.headers) == (416, {"Content-Range": "bytes */10"})
    else:
        selected = byte_range(header, 10)
        assert (selected and (selected.start, selected.stop)) == expected


def test_ranges_of_an_artifact(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(Role.ENGINEER, "GET", path)
    etag, size = whole.headers["etag"], len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert "content-range" not in whole.headers
    parts: list[tuple[dict[str, str], slice, str]] = [
        ({"Range": "bytes=3-8"}, slice(3, 9), f"bytes 3-8/{size}"),
        ({"Range": "bytes=-5"}, slice(-5, None), f"bytes {size - 5}-{size - 1}/{size}"),
        ({"Range": "bytes=3-8", "If-Range": etag}, slice(3, 9), f"bytes 3-8/{size}"),
    ]
    for headers, part, content_range in parts:
        response = api.call(Role.ENGINEER, "GET", path, headers=headers)
        assert (response.status_code, response.content) == (206, whole.content[part]), headers
        assert (response.headers["etag"], response.headers["content-range"]) == (etag, content_range)


def test_conditional_requests_of_an_artifact(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(Role.ENGINEER, "GET", path)
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
        response = api.call(Role.ENGINEER, "GET", path, headers=headers)
        assert (response.status_code, response.content) == (status, content), headers
        assert response.headers["etag"] == etag
        assert "content-range" not in response.headers


def test_a_range_past_the_end_is_refused(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    size = len(api.call(Role.ENGINEER, "GET", path).content)
    response = api.call(Role.ENGINEER, "GET", path, headers={"Range": f"bytes={size}-"})
    assert (response.status_code, response.headers["content-range"]) == (416, f"bytes */{size}")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:lethe:problem:range-not-satisfiable"
    stale = {"Range": f"bytes={size}-", "If-Range": '"another"'}
    assert api.call(Role.ENGINEER, "GET", path, headers=stale).status_code == 200


def test_head_has_the_headers_of_get_without_the_content(api: Api, settings: Settings, database: Database) -> None:
    path = f"{PATH}/{samples.register_sample(settings, database)}/artifact"
    whole = api.call(Role.ENGINEER, "GET", path)
    for headers in ({}, {"Range": "bytes=0-1"}):  # a range applies to GET only
        head = api.call(Role.ENGINEER, "HEAD", path, headers=headers)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("etag", "content-length", "content-type", "accept-ranges"):
            assert head.headers[name] == whole.headers[name]
    assert api.call(Role.ENGINEER, "HEAD", path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_a_damaged_file_is_410_and_no_byte_of_it_is_sent(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        digest = current_version(session, model_id).posterior_digest
    file = settings.artifact_dir / str(model_id) / digest
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for headers in ({}, {"Range": "bytes=0-3"}):
        response = api.call(Role.ENGINEER, "GET", f"{PATH}/{model_id}/artifact", headers=headers)
        assert (response.status_code, response.json()["type"]) == (410, "urn:lethe:problem:damaged")
        assert "restore it from a backup" in response.json()["detail"]
        assert content[:4] not in response.content
    file.write_bytes(content)
    assert api.call(Role.ENGINEER, "GET", f"{PATH}/{model_id}/artifact").content == content
