from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, Table

from migrations import check
from service.store.tables import Base


@pytest.fixture
def unmigrated_table() -> Iterator[None]:
    """A table in the code that no migration creates."""
    table = Table("unmigrated", Base.metadata, Column("id", Integer, primary_key=True))
    yield
    Base.metadata.remove(table)


def test_migrations_create_the_tables_in_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check._check("SQLite", f"sqlite:///{tmp_path}/check.db") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("unmigrated_table")
def test_a_missing_migration_fails_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check._check("SQLite", f"sqlite:///{tmp_path}/check.db") == 1
    error = capsys.readouterr().err
    assert error.startswith("SQLite: ")
    assert "Create a migration" in error
