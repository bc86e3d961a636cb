from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from lethe.cli.main import app
from service.settings import ConfigurationError, load_settings
from service.store.database import Database
from service.store.migrate import is_current

RUN = CliRunner()
pytestmark = pytest.mark.usefixtures("embedded")


def test_a_worker_serves_only_existing_queues() -> None:
    refused = RUN.invoke(app, ["worker", "--queues", "lethe.cpu,lethe.tpu"])
    assert refused.exit_code == 2
    assert "choose some of lethe.cpu, lethe.cuda" in refused.output


def test_migrate_creates_the_schema() -> None:
    assert RUN.invoke(app, ["migrate"]).stdout.endswith("The database is up to date.\n")
    database = Database(load_settings().database)
    assert is_current(database)
    database.close()


@pytest.mark.parametrize("command", ["api", "worker", "sweep"])
def test_a_process_refuses_a_database_without_the_schema(command: str) -> None:
    refused = RUN.invoke(app, [command])
    assert isinstance(refused.exception, ConfigurationError)
    assert "lethe migrate" in str(refused.exception)


def test_up_refuses_a_port_in_use() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        refused = RUN.invoke(app, ["up", "--port", str(listener.getsockname()[1])])
    assert isinstance(refused.exception, ConfigurationError)
    assert "choose another --port" in str(refused.exception)
