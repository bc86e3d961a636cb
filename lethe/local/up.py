"""`lethe up`: all of Lethe on one machine, under one supervisor."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from lethe.local.embedded_redis import redis_command
from lethe.local.supervisor import Program, Supervisor, exclusive
from service.settings import ConfigurationError, Settings, write_private_file
from service.store import migrate
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.signing.keys import open_signer
from service.store.signing.processor_identity import ProcessorIdentity
from service.store.states import Role

OTHERS_STOP_SECONDS = 20.0
"""Time to stop the programs that process no batches."""
IDENTITY_KEY_VARIABLES = ("LETHE_IDENTITY_KEY", "LETHE_IDENTITY_KEY_FILE", "LETHE_IDENTITY_KEY_COMMAND")
"""Empty for workers and the sweep, which read no identities. Empty, not unset: that also overrides a `.env` file."""


def run_up(settings: Settings, host: str, port: int, workers: int, log_file: Path | None) -> int:
    """Prepare the database, then run API, workers and sweep (and Redis, in the embedded default) until stopped."""
    _require_free(host, port)
    with exclusive(settings.data_dir):
        prepare(settings)
        # Workers are stopped one after another, each within its limit, and then the others.
        grace_seconds = workers * settings.shutdown_seconds + OTHERS_STOP_SECONDS
        programs = _programs(settings, host, port, workers)
        return Supervisor(programs, settings.data_dir, log_file, grace_seconds).run()


def prepare(settings: Settings) -> None:
    """Migrate the database; in the embedded default, also create keys and a token for each role in the data folder."""
    database = Database(settings.database)
    try:
        migrate.upgrade(database)
        open_signer(settings, database)  # a retired or revoked key fails here, once, and not in each program
        if settings.embedded:
            _write_tokens(settings, database)
            ProcessorIdentity.load(settings)  # creates its key and certificate
    finally:
        database.close()


def _write_tokens(settings: Settings, database: Database) -> None:
    for role in Role:
        path = settings.token_dir / f"{role}.token"
        if not path.exists():
            with database.writing() as session:
                write_private_file(path, issue_token(session, f"embedded-{role}", role, actor="lethe up"))


def _programs(settings: Settings, host: str, port: int, workers: int) -> list[Program]:
    env = {"LETHE_DATA_DIR": str(settings.data_dir.resolve())}
    without_identities = {**env, **dict.fromkeys(IDENTITY_KEY_VARIABLES, "")}
    lethe = [sys.executable, "-m", "lethe"]
    redis = [Program("redis", redis_command(settings.data_dir))] if settings.embedded else []
    return [
        *redis,
        Program("api", [*lethe, "api", "--host", host, "--port", str(port)], env),
        *(Program(f"worker-{number}", [*lethe, "worker"], without_identities) for number in range(1, workers + 1)),
        Program("sweep", [*lethe, "sweep"], without_identities),
    ]


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --port."
            ) from None
