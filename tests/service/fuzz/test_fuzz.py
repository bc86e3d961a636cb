"""Fuzzing by schemathesis with the token of each role: no 5xx, and no answer outside its schema.

The suite runs a short form, each role on one database; `make fuzz` runs five minutes and every phase.
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

FOLDER = Path(__file__).parent
SECONDS = os.environ.get("FUZZ_SECONDS")
"""Seconds per role. Without it, a few requests per operation, generated from a fixed seed."""
SHORT_RUN = ["--phases", "examples,fuzzing", "--max-examples", "2", "--seed", "7"]
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
    process = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", FOLDER / "schemathesis.toml"),
            *("run", f"{api.url}/openapi.json", "--header", f"Authorization: Bearer {api.tokens[role]}"),
            *("--report", "json", "--report-json-path", report),
            *(["--max-time", SECONDS] if SECONDS else SHORT_RUN),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    statistics = json.loads(report.read_text())
    print(f"{role}: {statistics['test_cases']['generated']} requests, {statistics['operations']['tested']} operations")  # noqa: T201
    assert statistics["operations"]["tested"] == statistics["operations"]["total"] > 30
    assert statistics["test_cases"]["generated"] > 2 * statistics["operations"]["total"]
    rates = statistics["valid_rates"]
    accepted = {name for name, phases in rates.items() if any(phase["accepted"] for phase in phases.values())}
    assert len(accepted) >= 5, "the role is allowed some operations"
