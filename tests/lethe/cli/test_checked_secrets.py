from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from lethe.cli.main import app
from lethe.local.up import prepare
from service.settings import ConfigurationError, Settings, load_settings
from service.store.access.identities import Identity, ensure_subjects, find_subjects
from service.store.access.identity_keys import open_hasher
from service.store.database import Database
from service.store.signing.processor_identity import open_processor
from service.store.tables import AuditEntry

ADA = Identity("email", "ada@example.org")
PREFIX = "LETHE_IDENTITY_KEY="


def run(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(app, ["key", *arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def open_prepared(data_dir: Path) -> tuple[Settings, Database]:
    settings = load_settings(data_dir)
    prepare(settings)
    return settings, Database(settings.database)


def register_ada(settings: Settings, database: Database) -> None:
    with database.writing() as session:
        ensure_subjects(session, [open_hasher(settings, database).lookup(ADA)])


def finds_ada(settings: Settings, database: Database) -> bool:
    lookup = open_hasher(settings, database).lookup(ADA)
    with database.reading() as session:
        return lookup in find_subjects(session, [lookup])


def test_a_key_file_is_extended_and_people_stay_known(tmp_path: Path) -> None:
    settings, database = open_prepared(tmp_path)
    register_ada(settings, database)
    file = tmp_path / "secrets" / "identity_key.key"
    old = file.read_text()
    for count in (2, 3):
        run("rotate-identity", "--data-dir", str(tmp_path))
        assert len(settings.identity_keys()) == count
        assert finds_ada(settings, database)
    assert file.read_text().startswith(f"{old},")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(old)
    with pytest.raises(ConfigurationError, match="LETHE_IDENTITY_KEY is not the secret"):
        open_hasher(settings, database)


def test_a_rotation_that_crashed_after_writing_the_file_is_finished(tmp_path: Path) -> None:
    """The longer list works before the hashes are wrapped, and the next run wraps them."""
    settings, database = open_prepared(tmp_path)
    register_ada(settings, database)
    file = tmp_path / "secrets" / "identity_key.key"
    file.write_text(f"{file.read_text()},{'BwcHAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxw='}")
    assert finds_ada(settings, database)
    assert open_hasher(settings, database).key_count == 1
    run("rotate-identity", "--data-dir", str(tmp_path))
    assert len(settings.identity_keys()) == open_hasher(settings, database).key_count == 2
    assert finds_ada(settings, database)


def test_without_a_file_the_list_is_printed_first_and_used_in_a_second_run(tmp_path: Path) -> None:
    settings, database = open_prepared(tmp_path)
    register_ada(settings, database)
    key = (tmp_path / "secrets" / "identity_key.key").read_text()
    printed = run("rotate-identity", "--data-dir", str(tmp_path), LETHE_IDENTITY_KEY=key)
    assert printed.startswith(f"{PREFIX}{key},")
    assert finds_ada(settings, database)  # nothing has changed yet
    keys = printed.strip().removeprefix(PREFIX)
    assert run("rotate-identity", "--data-dir", str(tmp_path), LETHE_IDENTITY_KEY=keys) == ""
    (tmp_path / "secrets" / "identity_key.key").write_text(keys)
    assert finds_ada(settings, database)
    assert open_hasher(settings, database).key_count == 2


def test_another_opendsr_key_has_to_be_accepted(tmp_path: Path) -> None:
    settings, database = open_prepared(tmp_path)
    open_processor(settings, database)
    for file in (tmp_path / "opendsr").iterdir():
        file.unlink()
    with pytest.raises(ConfigurationError, match="LETHE_OPENDSR_KEY_FILE is not the secret"):
        open_processor(settings, database)
    run("accept-opendsr", "--data-dir", str(tmp_path))
    open_processor(settings, database)
    with database.reading() as session:
        assert session.scalars(select(AuditEntry).where(AuditEntry.action == "opendsr_key.replaced")).one()
