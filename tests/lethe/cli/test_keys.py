from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from sqlalchemy import delete, select, update
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.verify import Rejected, Unconfirmed, verify
from service.settings import ConfigurationError, Settings, key_sources, load_settings, new_key, write_private_file
from service.settings.key_sources import run_key_command
from service.store import migrate
from service.store.certificates.statements import sign_receipt
from service.store.database import Database
from service.store.deletions.views import DeletionView
from service.store.signing.keys import configured_signer, open_signer
from service.store.signing.statements import StatementSigner, key_id_of
from service.store.states import SigningUse
from service.store.tables import AuditEntry, Deletion, SigningKey, now

RUN = CliRunner()
LONG_AGO = "2026-11-01T00:00:00Z"


@pytest.fixture(autouse=True)
def _embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_template: bytes) -> Iterator[None]:
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path(".lethe").mkdir()
    Path(".lethe/lethe.db").write_bytes(sqlite_template)
    before = os.umask(0)
    yield
    os.umask(before)
    run_key_command.cache_clear()


def key(*arguments: str) -> Result:
    return RUN.invoke(app, ["key", *arguments])


def signer() -> StatementSigner:
    return configured_signer(load_settings())


def export_keys() -> dict[str, dict[str, str | None]]:
    return {entry["keyid"]: entry for entry in json.loads(key("export").stdout)["keys"]}


def receipt(signer: StatementSigner) -> bytes:
    deletion = Deletion(id=uuid.uuid4(), caller="acme", regulation="gdpr", received_at=now())
    return sign_receipt(signer, DeletionView(deletion, [], [])).encode()


def open_configured_signer(settings: Settings) -> StatementSigner:
    database = Database(settings.database)
    try:
        return open_signer(settings, database)
    finally:
        database.close()


def test_help_explains_how_to_replace_a_key() -> None:
    shown = key("--help").output
    for words in ("lethe key rotate", "Restart the API", "lethe key retire", "lethe key revoke", "export"):
        assert words in shown
    for command in ("list", "add", "rotate", "retire", "revoke", "export"):
        assert key(command, "--help").exit_code == 0


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("use", list(SigningUse))
def test_a_rotation_writes_a_private_file_and_running_processes_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configured: bool, use: SigningUse
) -> None:
    """Under a umask that masks no bits."""
    name = "log_key" if use == SigningUse.LOG else "signing_key"
    path = tmp_path / "the.key" if configured else Path(f".lethe/secrets/{name}.key")
    if configured:
        write_private_file(path, new_key())
        monkeypatch.setenv(f"LETHE_{name.upper()}_FILE", str(path))
    running = open_configured_signer(load_settings())
    rotated = key("rotate", "--use", use)
    assert rotated.exit_code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() not in rotated.output
    old_id = key_id_of(running.public_keys[use])
    assert signer().public_keys[use] != running.public_keys[use]
    assert f"lethe key retire {old_id}" in rotated.output
    assert list(export_keys()) == [signer().key_id, signer().log_key_id, old_id]
    assert export_keys()[old_id]["use"] == use
    assert all(key["retired_at"] is None for key in export_keys().values())
    open_configured_signer(load_settings())


def test_a_retired_key_does_not_start_again_and_the_one_in_use_cannot_be_retired() -> None:
    old, file = open_configured_signer(load_settings()), Path(".lethe/secrets/signing_key.key")
    seed = file.read_text()
    assert key("retire", old.key_id).exit_code == 2
    key("rotate")
    assert key("retire", old.key_id).exit_code == 0
    assert key("retire", old.key_id).exit_code == 2
    assert export_keys()[old.key_id]["retired_at"] is not None
    assert f"{old.key_id}  statements, since" in key("list").stdout
    open_configured_signer(load_settings())
    file.write_text(seed)  # as from a backup
    for command in ("api", "sweep"):
        refused = RUN.invoke(app, [command])
        assert isinstance(refused.exception, ConfigurationError)
        assert f"{old.key_id[:8]} was retired" in str(refused.exception)


def test_a_key_is_revoked_in_public_with_its_reason() -> None:
    old = open_configured_signer(load_settings())
    assert key("revoke", old.key_id, "--at", LONG_AGO, "--reason", "a laptop was lost").exit_code == 0
    assert export_keys()[old.key_id]["revoked_at"] == LONG_AGO
    assert export_keys()[old.key_id]["reason"] == "a laptop was lost"
    assert f"revoked from {LONG_AGO}: a laptop was lost" in key("list").stdout
    with pytest.raises(ConfigurationError, match="was revoked"):
        open_configured_signer(load_settings())
    assert key("rotate").exit_code == 0  # the remedy
    open_configured_signer(load_settings())
    bare = key("export", "--pem").stdout
    assert bare == signer().public_pem


@pytest.mark.parametrize(
    ("at", "reason", "message"),
    [
        ("2026-11-01", "lost", "a time with a time zone"),
        ("yesterday", "lost", "a time with a time zone"),
        ("9999-01-01T00:00:00Z", "lost", "cannot be revoked in advance"),
        (LONG_AGO, " ", "one line"),
        (LONG_AGO, "lost\nand found", "one line"),
        (LONG_AGO, "x" * 501, "one line"),
    ],
)
def test_a_revocation_needs_a_past_time_and_a_reason(at: str, reason: str, message: str) -> None:
    old = open_configured_signer(load_settings())
    refused = key("revoke", old.key_id, "--at", at, "--reason", reason)
    assert refused.exit_code == 2
    assert message in refused.output
    assert export_keys()[old.key_id]["revoked_at"] is None


@pytest.mark.parametrize("variable", ["LETHE_SIGNING_KEY", "LETHE_SIGNING_KEY_COMMAND"])
def test_where_lethe_cannot_write_the_new_key_is_printed_on_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    write_private_file(tmp_path / "vault", new_key())
    monkeypatch.setenv(variable, (tmp_path / "vault").read_text() if variable == "LETHE_SIGNING_KEY" else "cat vault")
    old = open_configured_signer(load_settings())
    refused = key("rotate")
    assert refused.exit_code == 2
    assert list(export_keys()) == [old.key_id, old.log_key_id]
    rotated = key("rotate", "--print")
    seed = rotated.stdout.strip().removeprefix("LETHE_SIGNING_KEY=")
    assert seed not in rotated.stderr
    monkeypatch.delenv(variable)
    monkeypatch.setenv("LETHE_SIGNING_KEY", seed)
    assert list(export_keys()) == [signer().key_id, signer().log_key_id, old.key_id]
    assert old.key_id != signer().key_id == open_configured_signer(load_settings()).key_id


def test_a_key_that_cannot_be_written_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    old = open_configured_signer(load_settings())
    with monkeypatch.context() as disk:
        disk.setattr(key_sources.os, "fsync", full)
        refused = key("rotate")
    assert refused.exit_code == 2
    assert "No space left on device" in refused.output
    assert list(export_keys()) == [old.key_id, old.log_key_id]
    assert signer().key_id == old.key_id


def test_after_three_rotations_the_exported_list_still_verifies_correctly() -> None:
    signers = [open_configured_signer(load_settings())]
    receipts = [receipt(signers[0])]
    for _ in range(3):
        assert key("rotate").exit_code == 0
        signers.append(open_configured_signer(load_settings()))
        receipts += [receipt(signer) for signer in signers[-2:]]  # the overlap
        assert key("retire", signers[-2].key_id).exit_code == 0
    assert key("revoke", signers[1].key_id, "--at", LONG_AGO, "--reason", "lost").exit_code == 0
    assert key("export", "--out", "keys.json").exit_code == 0
    listed, of_revoked_key = Path("keys.json").read_bytes(), receipts[2:4]
    for content in receipts:
        if content not in of_revoked_key:
            with pytest.raises(Unconfirmed, match="entry in the log"):  # they never got one
                verify(content, listed)
    invalid = [(of_revoked_key[0], "revoked"), (of_revoked_key[1], "revoked"), (receipt(signers[2]), "retired")]
    for content, state in invalid:
        with pytest.raises(Rejected, match=f"when the key was {state}"):
            verify(content, listed)
    assert key("export", "--pem").stdout.count("BEGIN PUBLIC KEY") == 3 + 1


def test_the_audit_trail_has_each_step_and_no_private_key() -> None:
    old, seeds = open_configured_signer(load_settings()), [Path(".lethe/secrets/signing_key.key").read_text()]
    key("rotate")
    seeds.append(Path(".lethe/secrets/signing_key.key").read_text())
    key("retire", old.key_id)
    key("revoke", old.key_id, "--at", LONG_AGO, "--reason", "lost")
    database = Database(load_settings().database)
    with database.reading() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id)).all()
    database.close()
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("lethe", "key.added"),
        ("lethe", "key.added"),
        ("lethe key rotate", "key.added"),
        ("lethe key rotate", "key.rotated"),
        ("lethe key retire", "key.retired"),
        ("lethe key revoke", "key.revoked"),
    ]
    everything = Path(".lethe/lethe.db").read_bytes()  # the write-ahead log was merged into it
    for seed in seeds:
        assert seed.encode() not in everything


@pytest.mark.parametrize("use", list(SigningUse))
def test_a_lost_key_is_replaced_by_adding_another(use: SigningUse) -> None:
    lost = open_configured_signer(load_settings())
    Path(f".lethe/secrets/{'log' if use == SigningUse.LOG else 'signing'}_key.key").unlink()
    with pytest.raises(ConfigurationError, match=f"not in the list.*lethe key add --use {use}"):
        open_configured_signer(load_settings())
    assert key("add", "--use", use, "--reason", " ").exit_code == 2
    assert key("add", "--use", use, "--reason", "the disk was lost").exit_code == 0
    assert key("retire", key_id_of(lost.public_keys[use])).exit_code == 0
    assert open_configured_signer(load_settings()).public_keys[use] != lost.public_keys[use]
    assert key("add", "--use", use, "--reason", "again").exit_code == 2


def test_an_embedded_folder_from_before_log_keys_gets_one() -> None:
    open_configured_signer(load_settings())
    database = Database(load_settings().database)
    with database.writing() as session:
        session.execute(delete(SigningKey).where(SigningKey.use == "log"))
        session.execute(update(SigningKey).values(use=None))
    database.close()
    Path(".lethe/secrets/log_key.key").unlink()
    upgraded = open_configured_signer(load_settings())
    uses = {key_id: entry["use"] for key_id, entry in export_keys().items()}
    assert uses == {upgraded.key_id: None, upgraded.log_key_id: "log"}
    assert f"{upgraded.key_id}  statements and log, in use" in key("list").stdout


def test_a_database_without_the_current_schema_is_refused() -> None:
    database = Database(load_settings().database)
    migrate.downgrade(database)
    database.close()
    refused = key("list")
    assert isinstance(refused.exception, ConfigurationError)
    assert "lethe migrate" in str(refused.exception)


def test_secrets_are_fresh_and_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in RUN.invoke(app, ["secrets"]).output.split():
        monkeypatch.setenv(*line.split("=", 1))
    monkeypatch.setenv("DATABASE_URL", "postgresql://db/lethe")
    monkeypatch.setenv("REDIS_URL", "redis://broker/0")
    settings = load_settings()
    assert settings.identity_keys() != [settings.signing_key_bytes()]
