from __future__ import annotations

from pathlib import Path

import pytest
import typer

from lethe.cli import connection
from lethe.cli.connection import connect
from lethe.client import LetheError

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)


def test_without_a_token_the_one_of_the_role_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "auditor.token").write_text("secret\n")
    with connect(NOBODY, None, tmp_path, "auditor") as client:
        assert client._http.headers["Authorization"] == "Bearer secret"


def test_a_missing_token_file_is_named_with_the_alternatives(tmp_path: Path) -> None:
    with (
        pytest.raises(typer.BadParameter, match=r"set LETHE_TOKEN.*auditor\.token"),
        connect(NOBODY, None, tmp_path, "auditor"),
    ):
        pass


def test_a_service_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(typer.BadParameter, match=r"no answer from http://127\.0\.0\.1:1 .*lethe up"),
        connect(NOBODY, "secret", tmp_path, "auditor") as client,
    ):
        client.checkpoint()


def test_a_refusal_of_the_service_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(typer.BadParameter, match="403 Forbidden: not your log"),
        connect(NOBODY, "secret", tmp_path, "auditor"),
    ):
        raise LetheError(403, {"title": "Forbidden", "detail": "not your log"})
