"""schemathesis over the OpenAPI document, with the token of each role: no 5xx, and no answer outside its schema.

A taste in the suite, each role on one of the databases; `make fuzz` gives it five minutes and every phase.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.logs import configure_logging
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SECONDS = os.environ.get("FUZZ_SECONDS")
"""For each role. Without it, a few requests to each operation, made up anew from the same seed."""
TASTE = ["--phases", "examples,fuzzing", "--max-examples", "2", "--seed", "7"]
DATABASES = {
    Role.COMPLIANCE: "postgresql",
    Role.ENGINEER: "sqlite",
    Role.OPERATOR: "postgresql",
    Role.AUDITOR: "sqlite",
}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"rate_per_second": 1e6, "rate_burst": 1_000_000, "import_root": tmp_path})


@pytest.mark.parametrize(
    ("role", "database_url"),
    [pytest.param(role, kind, id=f"{role}-{kind}") for role, kind in DATABASES.items()],
    indirect=["database_url"],
)
def test_every_answer_is_as_documented(
    role: Role, api: Api, settings: Settings, database: Database, tmp_path: Path
) -> None:
    configure_logging("WARNING")
    samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1)
    report = tmp_path / "report.json"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", HERE / "schemathesis.toml"),
            *("run", f"{api.url}/openapi.json", "--header", f"Authorization: Bearer {api.tokens[role]}"),
            *("--report", "json", "--report-json-path", report),
            *(["--max-time", SECONDS] if SECONDS else TASTE),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(report.read_text())
    print(f"{role}: {told['test_cases']['generated']} requests, {told['operations']['tested']} operations")  # noqa: T201
    assert told["operations"]["tested"] == told["operations"]["total"] > 30
    assert told["test_cases"]["generated"] > 2 * told["operations"]["total"]
    accepted = {name for name, phases in told["valid_rates"].items() if any(one["accepted"] for one in phases.values())}
    assert len(accepted) >= 5, "the role may do something"
