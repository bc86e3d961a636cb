"""`lethe model register` and `refresh` against a real API; `check` and `polish` are tested in test_models.py."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lethe import Client
from lethe.cli.main import app
from lethe.cli.registration import advise_on_policy
from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api, api  # noqa: F401
from tests.service.store.refreshes.worn import worn_model
from tests.worker.conftest import context  # noqa: F401
from worker.context import WorkerContext
from worker.readiness import check_current

RUN = CliRunner()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, content in samples.parts().items():
        (tmp_path / name).write_bytes(content)
    return [str(tmp_path / name) for name in ("manifest", "posterior", "records", "subjects")]


@contextmanager
def checking(api: Api, context: WorkerContext) -> Iterator[None]:  # noqa: F811
    """Check models as a worker does, as soon as there is one."""
    done = threading.Event()

    def check() -> None:
        with Client(api.url, api.tokens[Role.OPERATOR]) as operator:
            while not done.wait(0.05):
                for model in operator._json("GET", "/api/v1/models")["items"]:
                    check_current(context, uuid.UUID(model["id"]))
                    done.set()

    thread = threading.Thread(target=check)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_model_is_registered_and_its_readiness_reported(
    api: Api,  # noqa: F811
    context: WorkerContext,  # noqa: F811
    files: list[str],
    as_json: bool,
) -> None:
    options = ["--url", api.url, "--token", api.tokens[Role.ENGINEER], *(["--json"] if as_json else [])]
    with checking(api, context):
        registered = RUN.invoke(app, ["model", "register", *files, *options])
    assert registered.exit_code == 0, registered.output
    if as_json:
        # The server, in this process, logs to the same stream.
        model = json.loads(next(line for line in registered.stdout.splitlines() if line.startswith('{"id"')))
        assert (model["posterior"], model["readiness"]["levels"]) == ("variational", ["proved"])
    else:
        assert "certificate levels: proved" in registered.stdout


def test_the_policy_of_a_networks_samples_is_advised_on() -> None:
    manifest = {"family": "mlp", "posterior": "samples", "policy": {"rungs": ["influence", "retrain"]}}
    for unnamed in (manifest, {**manifest, "policy": {}}):
        (note,) = advise_on_policy(unnamed)
        assert "does not name the rung reweight" in note
    for change in ({"policy": {"rungs": ["reweight"]}}, {"posterior": "variational"}, {"family": "linear-regression"}):
        assert advise_on_policy({**manifest, **change}) == []


def test_files_that_cannot_be_registered_are_refused(api: Api, files: list[str]) -> None:  # noqa: F811
    options = ["--url", api.url, "--token", api.tokens[Role.ENGINEER]]
    Path(files[0]).write_text("{")
    refused = RUN.invoke(app, ["model", "register", *files, *options])
    assert (refused.exit_code, "must be JSON" in refused.stderr) == (2, True)
    Path(files[0]).write_text("{}")
    refused = RUN.invoke(app, ["model", "register", *files, *options])
    assert (refused.exit_code, "manifest.name" in refused.stderr) == (2, True)


def test_a_refresh_is_requested(api: Api, settings: Settings, database: Database) -> None:  # noqa: F811
    model_id = worn_model(settings, database)
    options = ["--url", api.url, "--token", api.tokens[Role.OPERATOR]]
    requested = RUN.invoke(app, ["model", "refresh", str(model_id), *options])
    assert requested.exit_code == 0, requested.output
    assert "waiting: GET /api/v1/jobs/" in requested.stdout
    refused = RUN.invoke(app, ["model", "refresh", str(samples.register_sample(settings, database)), *options])
    assert (refused.exit_code, "only sample sets" in " ".join(refused.stderr.split())) == (2, True)
