"""Promises of the Dockerfile, and the health check of its worker on a real worker."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.settings import new_key
from tests.deployments import ROOT, check_command
from tests.waiting import wait_until

Stages = dict[str, list[list[str]]]
"""The instructions of each stage, as words."""


def test_hadolint_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([linter, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.fixture(scope="module")
def stages() -> Stages:
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    instructions: Stages = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("FROM "):
            name = line.split()[-1]
            instructions[name] = []
        instructions[name].append(line.split())
    return instructions


def test_images_use_one_exact_python(stages: Stages) -> None:
    bases = {stage[0][1] for stage in stages.values()} - set(stages)
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)


def test_only_the_worker_has_torch(stages: Stages) -> None:
    def installs(name: str) -> list[str]:
        return [" ".join(words) for words in stages[name] if words[0] == "RUN" and "pip install" in " ".join(words)]

    (api,) = installs("build-api")
    torch, worker = installs("build-worker")
    assert api.endswith("'.[s3]'")
    assert torch.endswith("torch torchvision")
    assert worker.endswith("'.[worker,s3]'")
    assert all("--no-cache-dir --constraint constraints.txt" in command for command in (api, torch, worker))
    for target in ("api", "worker"):
        copied = [words for words in stages[target] if words[0] == "COPY"]
        assert copied == [["COPY", f"--from=build-{target}", "/opt/lethe", "/opt/lethe"]]
    assert list(stages)[-1] == "api"  # the target of a build without --target


def test_images_run_as_a_numbered_user_and_without_a_shell(stages: Stages) -> None:
    assert ["USER", "10001:10001"] in stages["runtime"]
    assert ["ENTRYPOINT", '["lethe"]'] in stages["runtime"]
    for target in ("api", "worker"):
        assert stages[target][0] == ["FROM", "runtime", "AS", target]
        instructions = {words[0]: " ".join(words[1:]) for words in stages[target]}
        assert "USER" not in instructions
        assert "HEALTHCHECK" in instructions
        check_command(yaml.safe_load(instructions["CMD"]))


def test_images_get_what_they_need_and_nothing_else(stages: Stages) -> None:
    """A file that .dockerignore does not allow, such as a secret, does not even reach the engine."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    built = [words for name in ("build", "build-api", "build-worker") for words in stages[name] if words[0] == "COPY"]
    assert {source for words in built for source in words[1:-1]} == allowed
    assert all((ROOT / path).exists() for path in allowed)
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = packaging["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = {packaging["project"]["readme"], *packaging["project"]["license-files"]}
    assert {*wheel["packages"], *wheel["force-include"], *files, "pyproject.toml"} <= allowed
    words = [word for stage in stages.values() for line in stage if line[0] in ("ENV", "ARG") for word in line]
    assert not any(re.search("KEY|PASSWORD|SECRET|TOKEN|DATABASE_URL|REDIS_URL", word) for word in words)


def test_images_are_labelled_with_this_version(stages: Stages) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in [word for words in stages["runtime"] for word in words]
    assert f"lethe-api:{version}" in (ROOT / "docker-compose.yml").read_text()
    tags = re.findall(r"newTag: (\S+)}", (ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text())
    assert tags == [version] * 2


def test_images_are_built_with_exact_versions_of_everything() -> None:
    text = (ROOT / "deploy" / "constraints.txt").read_text()
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    unpinned, outside = set(), set()
    for requirement in _requirements("lethe", {"worker", "s3"}):
        name = canonicalize_name(requirement.name)
        if name not in pins:
            unpinned.add(name)
        elif not requirement.specifier.contains(pins[name]):
            outside.add(str(requirement))
    assert {name for name in unpinned if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()
    assert outside == set()


def _requirements(name: str, extras: set[str], visited: set[tuple[str, str]] | None = None) -> Iterator[Requirement]:
    """Yield the requirements of a package, transitively."""
    visited = set() if visited is None else visited
    added = {(name, extra) for extra in extras | {""}} - visited
    visited |= added
    for requirement in map(Requirement, (requires(name) or ()) if added else ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for _, extra in added):
            yield requirement
            yield from _requirements(canonicalize_name(requirement.name), requirement.extras, visited)


@pytest.mark.soak
def test_a_worker_is_healthy_while_it_runs(stages: Stages, broker: str, sqlite_template: bytes, tmp_path: Path) -> None:
    """Run the health check of the image."""
    (healthcheck,) = [" ".join(words) for words in stages["worker"] if words[0] == "HEALTHCHECK"]
    check = yaml.safe_load(healthcheck.partition("CMD ")[2])
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker"]["healthcheck"]["test"]
    assert compose[1].replace("$$", "$") == check[2]
    (tmp_path / "lethe.db").write_bytes(sqlite_template)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOSTNAME": socket.gethostname(),
        "DATABASE_URL": f"sqlite:///{tmp_path / 'lethe.db'}",
        "REDIS_URL": broker,
        "LETHE_IDENTITY_KEY": new_key(),
        "LETHE_SIGNING_KEY": new_key(),
        "LETHE_LOG_KEY": new_key(),
    }

    def is_healthy() -> bool:
        return subprocess.run(check, env=env, cwd=tmp_path, capture_output=True, check=False).returncode == 0

    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(["lethe", "worker"], env=env, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_until(is_healthy, "the worker is healthy", timeout=60)
    finally:
        worker.terminate()
        worker.wait(timeout=30)
    assert not is_healthy()
