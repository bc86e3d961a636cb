from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from benchmarks.service.database import scratch_postgresql, scratch_redis, scratch_settings
from tests.waiting import wait_until


def run_query(url: str, statement: str) -> object:
    engine = create_engine(url)
    with engine.connect() as connection:
        answer = connection.scalar(text(statement))
    engine.dispose()
    return answer


def test_the_scratch_database_is_dropped_afterwards(
    postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgresql)
    with scratch_postgresql(tmp_path) as url:
        name = url.rsplit("/", 1)[1].split("?")[0]
        assert run_query(url, "SELECT current_database()") == name
    assert run_query(postgresql, f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == 0


def test_settings_ignore_the_environment_and_redis_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_DATA_DIR", "/nowhere")
    settings = scratch_settings(tmp_path, "sqlite:///unused.db")
    assert settings.data_dir == tmp_path / "data"
    socket = settings.broker.partition("://")[2]
    with scratch_redis(settings.data_dir):
        wait_until(Path(socket).exists, "Redis to listen")
        with Redis(unix_socket_path=socket) as redis:
            assert redis.ping()
