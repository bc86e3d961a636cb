"""Certificates and receipts by extension and by content type: a bundle, a PDF, a page."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from lethe.verify import Unconfirmed, verify
from service.settings import Settings
from service.store.database import Database
from service.store.log import sequencing
from service.store.signing.keys import configured_signer
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

MISSING = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Requested:
    """A deletion request with a receipt and a certificate of absence."""

    api: Api
    receipt: str
    path: str
    absence: str


@pytest.fixture
def requested(api: Api, settings: Settings, database: Database) -> Requested:
    """Request the deletion of an unknown person; receipt and absence are in the log."""
    response = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={"subjects": [samples.person(9)]}).json()
    with database.writing() as session:
        sequencing.sequence_entries(session, configured_signer(settings))
    path = f"/api/v1/deletions/{response['id']}"
    return Requested(api, response["receipt"], f"{path}/receipt", response["absence"])


def keys_of(api: Api) -> bytes:
    return api.call(None, "GET", "/api/v1/log/keys").content


def test_a_receipt_keeps_its_promise(requested: Requested) -> None:
    """The receipt from intake and the one downloaded after the log had the entry are the same statement."""
    with pytest.raises(Unconfirmed, match="entry in the log") as early:
        verify(requested.receipt.encode(), keys_of(requested.api))
    response = requested.api.call(Role.COMPLIANCE, "GET", requested.path)
    late = verify(response.content, keys_of(requested.api))
    assert "of the log localhost/lethe" in late.checks[-1]
    assert late.predicate == early.value.so_far.predicate
    assert json.loads(response.content)["envelope"] == json.loads(requested.receipt)["envelope"]


def test_the_same_bytes_each_time(requested: Requested) -> None:
    contents = {requested.api.call(Role.AUDITOR, "GET", f"{requested.absence}{end}").content for end in ("", ".json")}
    assert len(contents) == 1
    assert verify(contents.pop(), keys_of(requested.api)).kind == "certificate of absence"


@pytest.mark.parametrize(
    ("extension", "accept", "media_type", "starts"),
    [
        ("", "*/*", "application/json", b"{"),
        (".json", "text/html", "application/json", b"{"),
        (".pdf", "*/*", "application/pdf", b"%PDF-"),
        ("", "application/pdf", "application/pdf", b"%PDF-"),
        (".html", "*/*", "text/html", b"<!DOCTYPE html>"),
        ("", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "text/html", b"<!DOCTYPE html>"),
    ],
)
def test_each_form_by_extension_and_by_accept(
    requested: Requested, extension: str, accept: str, media_type: str, starts: bytes
) -> None:
    for path in (requested.path, requested.absence):
        response = requested.api.call(Role.COMPLIANCE, "GET", f"{path}{extension}", {"Accept": accept})
        assert response.status_code == 200
        assert response.headers["content-type"].partition(";")[0] == media_type
        assert response.content.lower().startswith(starts.lower())
        assert response.headers["vary"] == "Accept"
        assert f".{media_type.rpartition('/')[2]}" in response.headers["content-disposition"]


def test_a_page_may_have_its_style_and_nothing_else(requested: Requested) -> None:
    policy = requested.api.call(Role.COMPLIANCE, "GET", f"{requested.path}.html").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    policy = requested.api.call(Role.COMPLIANCE, "GET", f"{requested.path}.json").headers["content-security-policy"]
    assert policy == "default-src 'none'; frame-ancestors 'none'"


def test_another_extension_and_another_caller_s_are_refused(requested: Requested) -> None:
    assert requested.api.call(Role.COMPLIANCE, "GET", f"{requested.path}.docx").status_code == 422
    for kind in ("pdf", "json"):
        response = requested.api.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{MISSING}/receipt.{kind}")
        assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")
