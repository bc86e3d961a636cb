"""Promises of docker-compose.yml and .env.example."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import yaml

from lethe.local.embedded_redis import server_executable
from service.settings import ConfigurationError, Settings, load_settings
from service.store.batches.doorbell import QUEUES
from tests.conftest import redis_responds
from tests.deployments import ROOT, check_command, is_known_variable, setting_variables
from tests.waiting import wait_until

REQUIRED = re.compile(r"\$\{\w+:\?")
"""A variable without which Compose does not start."""

LONG_RUNNING = ("api", "worker", "worker-gpu", "sweep")
"""Services of docker-compose.yml with Lethe's images that run until they are stopped."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return dict(compose["services"])


def test_the_example_environment_names_every_setting_with_its_default() -> None:
    lines = re.findall(r"^(# )?([A-Z][A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    variables = setting_variables()
    names = [name for _, name, _ in lines]
    assert len(names) == len(set(names))
    assert set(names) == set(variables)
    examples = {variables[name]: value for comment, name, value in lines if comment}
    defaults = Settings(_env_file=None)  # type: ignore[call-arg]
    for name, field in Settings.model_fields.items():
        if name in examples and isinstance(field.default, int | float):
            assert float(json.loads(examples[name])) == getattr(defaults, name), name


def test_the_example_environment_is_refused_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="DATABASE_URL has a placeholder"):
        load_settings()


def test_compose_runs_existing_commands(services: dict[str, Any]) -> None:
    assert set(services) == {"postgres", "redis", "migrate", *LONG_RUNNING}
    for name in ("migrate", *LONG_RUNNING):
        check_command(services[name]["command"])
        assert services[name]["command"][0] == name.removesuffix("-gpu")


def test_compose_sets_only_known_variables(services: dict[str, Any]) -> None:
    for name in ("migrate", *LONG_RUNNING):
        assert all(map(is_known_variable, services[name]["environment"]))
    text = (ROOT / "docker-compose.yml").read_text()
    defaults = dict(re.findall(r"\$\{(LETHE_\w+):-([^}]*)\}", text))
    assert {name for name in defaults if not is_known_variable(name)} == {"LETHE_PORT"}  # for the host
    del defaults["LETHE_PORT"]
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    for variable, value in defaults.items():
        default = getattr(settings, setting_variables()[variable])
        assert type(default)(value) == default


def test_compose_contains_no_secret_and_requires_each(services: dict[str, Any]) -> None:
    secret = re.compile(r"KEY|PASSWORD|AUTH|_URL$")
    for service in services.values():
        for variable, value in service.get("environment", {}).items():
            assert variable == "LETHE_PUBLIC_URL" or not secret.search(variable) or REQUIRED.search(value), variable


def test_compose_gives_the_identity_key_to_the_api_alone(services: dict[str, Any]) -> None:
    holders = [name for name, service in services.items() if "LETHE_IDENTITY_KEY" in service.get("environment", {})]
    assert holders == ["api"]
    for name in LONG_RUNNING:
        assert {"LETHE_SIGNING_KEY", "LETHE_LOG_KEY"} <= set(services[name]["environment"])


def test_the_redis_of_compose_has_a_password_that_no_command_line_shows(
    services: dict[str, Any], tmp_path: Path
) -> None:
    """Run the command of the service and its health check, on a socket of its own."""
    service, password, socket = services["redis"], "k3yW0rd5ecret", tmp_path / "redis.sock"
    assert f"@{service['image'].partition(':')[0]}:6379" in services["api"]["environment"]["REDIS_URL"]
    command = [part.replace("$$", "$") for part in service["command"]]
    command[-1] = command[-1].replace("END\n", f"END\nport 0\nunixsocket {socket}\n", 1)
    env = {"PATH": f"{server_executable().parent}:/usr/bin:/bin", "REDISCLI_AUTH": password}
    assert set(service["environment"]) == {"REDISCLI_AUTH"}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as server:
        try:
            with redis.Redis(unix_socket_path=str(socket), password=password) as client:
                wait_until(lambda: redis_responds(client), "Redis answers")
            with redis.Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
            words = psutil.Process(server.pid).cmdline()
        finally:
            server.kill()
    assert words[0].startswith("redis-server")  # no shell in between: it receives signals
    assert password not in " ".join(words)


COMMAND_LINE_SECRETS = re.compile(
    r"--requirepass|--password[= ]|--broker[= ]|--token[= ](?!issue)|redis-cli.* -[au] |(curl|http).*Bearer \$?\(?\w"
    r"|(psql|pg_dump|pg_restore|celery|redis-cli|docker run).*://\S*:\S*@|(--env|-e) \w*(KEY|PASSWORD|SECRET|TOKEN)\w*="
)
"""Secrets as arguments. Every user of a host can read the command lines of all processes."""


@pytest.mark.parametrize(
    "line",
    [
        'celery --broker "$REDIS_URL" inspect ping',
        "redis-server --requirepass x",
        "redis-cli -a x ping",
        'curl -H "Authorization: Bearer $TOKEN" https://x',
        "lethe log mirror DIR --token TOKEN",
        "psql postgresql://lethe:x@host/lethe",
        "docker run --env LETHE_SIGNING_KEY=x lethe-api",
    ],
)
def test_secrets_on_command_lines_are_recognized(line: str) -> None:
    assert COMMAND_LINE_SECRETS.search(line)


def test_no_file_puts_a_secret_on_a_command_line() -> None:
    names = ("README.md", "CONTRIBUTING.md", "Makefile", "Dockerfile", "docker-compose.yml", ".env.example")
    folders = ("docs", "deploy", "examples", ".github")
    paths = [ROOT / name for name in names] + [
        path
        for folder in folders
        for pattern in ("*.md", "*.yaml", "*.yml", "*.sh")
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert len(paths) > 30
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(re.sub(r"\\\n", " ", path.read_text()).splitlines(), 1)
        if COMMAND_LINE_SECRETS.search(line)
    ]
    assert lines == []


def test_compose_migrates_once_before_anything_else_starts(services: dict[str, Any]) -> None:
    assert services["migrate"]["restart"] == "no"
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in LONG_RUNNING:
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert services[name]["restart"] == "unless-stopped"


def test_compose_has_health_checks(services: dict[str, Any]) -> None:
    for name in ("postgres", "redis", "api", "worker", "worker-gpu"):
        assert services[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    for name in ("migrate", "sweep"):  # otherwise they would inherit the check of the API's image and never be healthy
        assert services[name]["healthcheck"] == {"disable": True}


def test_compose_stores_data_in_volumes_and_redis_stores_none(services: dict[str, Any]) -> None:
    assert services["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]
    for name in LONG_RUNNING:
        (volume,) = services[name]["volumes"]
        assert volume == f"lethe:{services[name]['environment']['LETHE_DATA_DIR']}"
    assert "volumes" not in services["redis"]
    assert {'save ""', "appendonly no"} <= set(services["redis"]["command"][-1].splitlines())


def test_compose_gives_workers_time_to_shut_down(services: dict[str, Any]) -> None:
    for name in ("worker", "worker-gpu"):
        expression = services[name]["environment"]["LETHE_SHUTDOWN_SECONDS"]
        default = float(re.search(r":-(\d+)\}", expression)[1])  # type: ignore[index]
        assert seconds(services[name]["stop_grace_period"]) > default


def test_compose_reserves_the_gpu_for_models_that_need_one(services: dict[str, Any]) -> None:
    gpu = services["worker-gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert gpu["command"] == ["worker", "--queues", QUEUES["cuda"]]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert services["worker"]["command"] == ["worker", "--queues", QUEUES["cpu"]]
    assert "profiles" not in services["worker"]


def test_compose_drops_all_privileges(services: dict[str, Any]) -> None:
    assert services["redis"]["user"] == "redis"
    for name in ("redis", "migrate", *LONG_RUNNING):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    assert [name for name, service in services.items() if "ports" in service] == ["api"]


def seconds(text: str) -> float:
    return float(re.fullmatch(r"(\d+)s", text)[1])  # type: ignore[index]
