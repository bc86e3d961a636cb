from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from sqlalchemy import select
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.verify import verify
from service.settings import Settings, load_settings
from service.store.certificates.bundles import find_absence, find_certificate
from service.store.database import Database
from service.store.signing.keys import open_signer
from service.store.tables import Certificate
from tests import samples
from tests.service.routes.test_jobs import publish_sample
from tests.service.store.certificates.test_reissue import absent

RUN = CliRunner()


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_template: bytes) -> Settings:
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LETHE_BATCH_WINDOW_SECONDS", "0")
    monkeypatch.chdir(tmp_path)
    Path(".lethe").mkdir()
    Path(".lethe/lethe.db").write_bytes(sqlite_template)
    return load_settings()


@pytest.fixture
def store(embedded: Settings) -> Iterator[Database]:
    opened = Database(embedded.database)
    yield opened
    opened.close()


def lethe(*arguments: str) -> Result:
    return RUN.invoke(app, list(arguments))


def test_all_certificates_of_a_revoked_key_are_issued_again(embedded: Settings, store: Database) -> None:
    model_id = samples.register_sample(embedded, store)
    old_ids = [publish_sample(embedded, store, model_id, person) for person in (1, 2)]
    deletion_id = absent(embedded, store)
    key_id = open_signer(embedded, store).key_id
    assert lethe("certificate", "reissue", "--key", key_id).exit_code == 2  # not revoked
    assert lethe("key", "rotate").exit_code == 0
    assert lethe("key", "revoke", key_id, "--at", "2026-11-01T00:00:00Z", "--reason", "lost").exit_code == 0
    reissued = lethe("certificate", "reissue", "--key", key_id, "--json")
    assert reissued.exit_code == 0, reissued.output
    result = json.loads(reissued.stdout)
    assert set(result["certificates"]) == {str(old_id) for old_id in old_ids}
    assert list(result["absences"]) == [str(deletion_id)]
    listed = lethe("key", "export").stdout.encode()
    with store.reading() as session:
        for new_id in session.scalars(select(Certificate.id).where(Certificate.replaced_by.is_(None))).all():
            assert str(new_id) in result["certificates"].values()
            verify(find_certificate(session, new_id, None).encode(), listed)
        verify(find_absence(session, deletion_id, None).encode(), listed)
    assert "nothing to issue again" in lethe("certificate", "reissue", "--key", key_id).stdout


def test_one_certificate_is_named_by_its_id(embedded: Settings, store: Database) -> None:
    old_id = publish_sample(embedded, store, samples.register_sample(embedded, store), 1)
    refused = lethe("certificate", "reissue", str(old_id))
    assert refused.exit_code == 2
    assert "verifiers accept the certificate" in " ".join(refused.output.replace("│", " ").split())
    for arguments in ((), (str(old_id), "--key", "0" * 64)):
        assert lethe("certificate", "reissue", *arguments).exit_code == 2
    key_id = open_signer(embedded, store).key_id
    lethe("key", "rotate")
    lethe("key", "revoke", key_id, "--at", "2026-11-01T00:00:00Z", "--reason", "lost")
    first, second = (lethe("certificate", "reissue", str(old_id)).stdout for _ in range(2))
    assert f"{old_id} replaced by" in first
    assert first == second
