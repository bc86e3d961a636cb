"""Callbacks to OpenDSR platforms; test_sender.py has those of the native API."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from service.settings import Settings, load_settings
from service.store.callbacks.claiming import ClaimedCallback
from service.store.signing import processor_identity
from service.store.signing.keys import configured_signer
from service.store.tables import now
from worker.callbacks.message import MessageWriter

DUE = "2026-12-16T09:30:00Z"
URL = "https://platform.example/callback"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(processor_identity, "KEY_BITS", 2048)  # faster to generate
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    return load_settings(tmp_path)


def callback(status: str, certificates: int) -> ClaimedCallback:
    deletion_id = uuid.uuid4()
    paths = [f"/api/v1/certificates/{uuid.uuid4()}" for _ in range(certificates)]
    message = {"status": status, "occurred_at": DUE, "due_at": DUE, "certificates": paths, "absence": None}
    return ClaimedCallback(
        uuid.uuid4(), 1, deletion_id, URL, "platform.example", message, 1, now(), "acme", uuid.uuid4()
    )


@pytest.mark.parametrize(
    ("status", "certificates", "request_status"),
    [("running", 0, "in_progress"), ("completed", 2, "completed"), ("completed", 0, "completed")],
)
def test_the_body_has_the_required_fields_and_no_unknown_address(
    settings: Settings, status: str, certificates: int, request_status: str
) -> None:
    claimed = callback(status, certificates)
    written = MessageWriter(settings, configured_signer(settings)).write(claimed)
    assert json.loads(written.body) == {
        "controller_id": "acme",
        "expected_completion_time": DUE,
        "status_callback_url": URL,
        "subject_request_id": str(claimed.subject_request_id),
        "request_status": request_status,
    }


@pytest.mark.parametrize(
    ("status", "certificates", "base", "has_results"),
    [
        ("completed", 2, "https://lethe.example", True),
        ("completed", 1, "https://lethe.example/behind/a/proxy/", True),
        ("completed", 0, "https://lethe.example", False),
        ("running", 0, "https://lethe.example", False),
        ("completed", 2, "", False),
    ],
)
def test_the_results_url_needs_a_public_url_and_certificates(
    settings: Settings, status: str, certificates: int, base: str, has_results: bool
) -> None:
    claimed, signer = callback(status, certificates), configured_signer(settings)
    body = json.loads(MessageWriter(settings.model_copy(update={"public_url": base}), signer).write(claimed).body)
    url = f"{base.rstrip('/')}/api/v1/deletions/{claimed.deletion_id}"
    expected = {"results_url": url, "results_count": certificates} if has_results else {}
    assert {name: body[name] for name in ("results_url", "results_count") if name in body} == expected
