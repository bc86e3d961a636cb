"""Preparation of `lethe up`; tests/end_to_end/test_up.py runs it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lethe.local.up import IDENTITY_KEY_VARIABLES, _programs, prepare
from service.settings import Settings, load_settings
from service.store.access.tokens import find_caller, list_tokens
from service.store.database import Database


@pytest.mark.usefixtures("embedded")
def test_the_embedded_default_has_a_private_token_for_each_role(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "data")
    prepare(settings)
    prepare(settings)
    files = sorted(settings.token_dir.iterdir())
    assert [path.stem for path in files] == ["auditor", "compliance", "engineer", "operator"]
    database = Database(settings.database)
    with database.reading() as session:
        assert len(list_tokens(session)) == 4
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            caller = find_caller(session, path.read_text())
            assert caller is not None
            assert caller.role == path.stem
    database.close()


def test_programs_start_with_redis_and_share_the_data_folder(embedded: Path) -> None:
    programs = _programs(load_settings(embedded), "127.0.0.1", 8123, workers=2)
    assert [program.name for program in programs] == ["redis", "api", "worker-1", "worker-2", "sweep"]
    assert programs[1].argv[-4:] == ["--host", "127.0.0.1", "--port", "8123"]
    assert {program.env["LETHE_DATA_DIR"] for program in programs[1:]} == {str(embedded.resolve())}


def test_no_command_line_has_a_secret_and_only_the_api_has_the_identity_key(tmp_path: Path) -> None:
    """Secrets go by the environment, which other users of the host cannot read."""
    settings = Settings(
        _env_file=None,  # type: ignore[call-arg]
        DATABASE_URL="postgresql://lethe:p4ssw0rd@host/lethe",
        REDIS_URL="redis://:p4ssw0rd@host/0",
        data_dir=tmp_path,
    )
    programs = _programs(settings, "127.0.0.1", 8123, workers=1)
    assert "p4ssw0rd" not in " ".join(word for program in programs for word in program.argv)
    names = [field for field in Settings.model_fields if field.startswith("identity_key")]
    assert {f"LETHE_{name.upper()}" for name in names} == set(IDENTITY_KEY_VARIABLES)
    assert {program.name: program.env.get("LETHE_IDENTITY_KEY") for program in programs} == {
        "api": None,
        "worker-1": "",
        "sweep": "",
    }
