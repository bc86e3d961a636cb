from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import typer

from lethe.cli.store import load_logged_settings, load_ready_settings, open_store
from service.settings import ConfigurationError
from service.store.access.tokens import revoke_token
from service.store.signing.keys import keys_for, open_signer


@pytest.fixture
def data_dir(embedded: Path, sqlite_template: bytes) -> Path:
    """The data folder of an embedded default with an empty, migrated database."""
    embedded.mkdir()
    (embedded / "lethe.db").write_bytes(sqlite_template)
    return embedded


def test_the_store_needs_the_current_schema(embedded: Path) -> None:
    with pytest.raises(ConfigurationError, match="run `lethe migrate` first"), open_store(embedded):
        pass


def test_a_missing_row_becomes_a_usage_error(data_dir: Path) -> None:
    with (
        pytest.raises(typer.BadParameter),
        open_store(data_dir) as (_, database),
        database.writing() as session,
    ):
        revoke_token(session, uuid.uuid4(), actor="test")


def test_ready_settings_list_the_signing_keys(data_dir: Path) -> None:
    settings = load_ready_settings(data_dir)
    with open_store(data_dir) as (_, database), database.reading() as session:
        signer = open_signer(settings, database)
        assert [key.key_id for key in keys_for(session, signer)] == [signer.key_id, signer.log_key_id]


def test_logged_settings_need_no_database(embedded: Path) -> None:
    assert load_logged_settings(embedded).data_dir == embedded
    assert not (embedded / "lethe.db").exists()
