"""Certificates and receipts by extension and by content type: a bundle, a PDF, a page."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from lethe.verify import verify
from service.settings import Settings
from service.store.database import Database
from service.store.log import sequencing
from service.store.signing.statements import StatementSigner
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

MISSING = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Asked:
    api: Api
    receipt: str
    path: str
    absence: str


@pytest.fixture
def asked(api: Api, settings: Settings, database: Database) -> Asked:
    """A deletion of nobody, which has a receipt and a certificate, both with their place in the log."""
    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json={"subjects": [samples.person(9)]}).json()
    with database.writing() as session:
        sequencing.sequence_entries(session, StatementSigner(settings.signing_key_bytes(), settings.origin))
    path = f"/api/v1/deletions/{answer['id']}"
    return Asked(api, answer["receipt"], f"{path}/receipt", answer["absence"])


def keys_of(api: Api) -> bytes:
    return api.call(None, "GET", "/api/v1/log/keys").content


def test_a_receipt_keeps_its_promise(asked: Asked) -> None:
    """What intake signed before the log had the entry, and what is downloaded afterwards, are the same statement."""
    given = verify(asked.receipt.encode(), keys_of(asked.api))
    assert "not yet" in given.checks[-1]
    answer = asked.api.call(Role.COMPLIANCE, "GET", asked.path)
    response = verify(answer.content, keys_of(asked.api))
    assert "of the log localhost/lethe" in response.checks[-1]
    assert response.predicate == given.predicate
    assert json.loads(answer.content)["envelope"] == json.loads(asked.receipt)["envelope"]


def test_the_same_bytes_each_time(asked: Asked) -> None:
    answers = {asked.api.call(Role.AUDITOR, "GET", f"{asked.absence}{end}").content for end in ("", ".json")}
    assert len(answers) == 1
    assert verify(answers.pop(), keys_of(asked.api)).kind == "certificate of absence"


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
    asked: Asked, extension: str, accept: str, media_type: str, starts: bytes
) -> None:
    for path in (asked.path, asked.absence):
        answer = asked.api.call(Role.COMPLIANCE, "GET", f"{path}{extension}", {"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == media_type
        assert answer.content.lower().startswith(starts.lower())
        assert answer.headers["vary"] == "Accept"
        assert f".{media_type.rpartition('/')[2]}" in answer.headers["content-disposition"]


def test_a_page_may_have_its_style_and_nothing_else(asked: Asked) -> None:
    policy = asked.api.call(Role.COMPLIANCE, "GET", f"{asked.path}.html").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    policy = asked.api.call(Role.COMPLIANCE, "GET", f"{asked.path}.json").headers["content-security-policy"]
    assert policy == "default-src 'none'; frame-ancestors 'none'"


def test_another_extension_and_another_caller_s_are_refused(asked: Asked) -> None:
    assert asked.api.call(Role.COMPLIANCE, "GET", f"{asked.path}.docx").status_code == 422
    for kind in ("pdf", "json"):
        answer = asked.api.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{MISSING}/receipt.{kind}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
