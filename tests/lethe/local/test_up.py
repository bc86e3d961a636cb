"""Preparation of `lethe up`; tests/end_to_end/test_up.py runs it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lethe.local.up import _programs, prepare
from service.settings import load_settings
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
