"""Promises of the Kubernetes manifests, and their validity by the official schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.settings import ConfigurationError, load_settings, new_key
from service.store.batches.doorbell import QUEUES
from tests.deployments import ROOT, check_command, is_known_variable

KUBERNETES = ROOT / "deploy" / "kubernetes"
RELEASE = "1.31"
WITHOUT_SCHEMA = ("keda.sh/", "kustomize.config.k8s.io/")
"""API groups of other projects, for which Kubernetes has no schema."""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
Manifests = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    paths = sorted(KUBERNETES.glob("*.yaml"))
    documents = [document for path in paths for document in yaml.safe_load_all(path.read_text())]
    named = [document for document in documents if "metadata" in document]
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in named}
    assert len(by_name) == len(named) == len(documents) - 1, "only the kustomization has no name"
    return by_name


def pods(manifests: Manifests) -> Iterator[tuple[str, dict[str, Any]]]:
    for (kind, name), manifest in manifests.items():
        if kind in ("Deployment", "Job"):
            yield name, manifest["spec"]["template"]["spec"]


def test_manifests_match_the_schemas_of_kubernetes(manifests: Manifests) -> None:
    checked = [manifest for manifest in manifests.values() if not manifest["apiVersion"].startswith(WITHOUT_SCHEMA)]
    for manifest in checked:
        kubernetes_validate.validate(manifest, RELEASE, strict=True)
    assert len(checked) == len(manifests) - 2  # two are KEDA's


def test_the_kustomization_has_everything_but_the_secrets() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    others = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert set(kustomization["resources"]) == others


def test_pods_run_existing_commands(manifests: Manifests) -> None:
    images = {}
    for name, pod in pods(manifests):
        (container,) = pod["containers"]
        check_command(container["args"])
        assert name == f"lethe-{container['args'][0]}"
        images[container["args"][0]] = container["image"]
    assert images == {"migrate": "lethe-api", "api": "lethe-api", "sweep": "lethe-api", "worker": "lethe-worker"}


def test_pods_drop_all_privileges(manifests: Manifests) -> None:
    for _, pod in pods(manifests):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        (container,) = pod["containers"]
        assert container["securityContext"] == RESTRICTED
        assert {"requests", "limits"} <= set(container["resources"])
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert {"/tmp", "/var/lib/lethe"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def environment(manifests: Manifests) -> dict[str, str]:
    """Return the environment of each pod."""
    sources = [{"configMapRef": {"name": "lethe"}}, {"secretRef": {"name": "lethe"}}]
    assert all(pod["containers"][0]["envFrom"] == sources for _, pod in pods(manifests))
    return {**manifests["ConfigMap", "lethe"]["data"], **manifests["Secret", "lethe"]["stringData"]}


def test_pods_get_only_known_variables(manifests: Manifests) -> None:
    assert all(map(is_known_variable, environment(manifests)))


def test_a_placeholder_secret_is_refused_by_name(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, value in environment(manifests).items():
        monkeypatch.setenv(variable, value)
    secrets = {
        "DATABASE_URL": "postgresql://lethe:x7f3@postgres/lethe",
        "REDIS_URL": "redis://:x7f3@redis:6379/0",
        "LETHE_IDENTITY_KEY": new_key(),
        "LETHE_SIGNING_KEY": new_key(),
        "LETHE_LOG_KEY": new_key(),
    }
    for variable, value in secrets.items():
        with pytest.raises(ConfigurationError, match=f"^{variable} .*placeholder"):
            load_settings()
        monkeypatch.setenv(variable, value)
    assert load_settings().shutdown_seconds == 60


def test_the_api_has_probes_a_service_and_a_disruption_budget(manifests: Manifests) -> None:
    deployment = manifests["Deployment", "lethe-api"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    (container,) = deployment["template"]["spec"]["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/readyz", "readiness": "/healthz", "liveness": "/healthz"}
    assert {probe["port"] for probe in probes.values()} == {"http"} == {container["ports"][0]["name"]}
    assert manifests["Service", "lethe-api"]["spec"]["selector"] == labels
    budget = manifests["PodDisruptionBudget", "lethe-api"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < deployment["replicas"]


def test_workers_have_time_to_shut_down(manifests: Manifests) -> None:
    pod = manifests["Deployment", "lethe-worker"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > float(environment(manifests)["LETHE_SHUTDOWN_SECONDS"])


def test_workers_are_scaled_by_their_queue(manifests: Manifests) -> None:
    deployment = manifests["Deployment", "lethe-worker"]["spec"]
    scaled = manifests["ScaledObject", "lethe-worker"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": "lethe-worker"}
    assert "replicas" not in deployment  # otherwise each apply would undo the autoscaling
    (trigger,) = scaled["triggers"]
    assert (trigger["type"], trigger["metadata"]["listName"]) == ("redis", QUEUES["cpu"])
    assert deployment["template"]["spec"]["containers"][0]["args"] == ["worker", "--queues", QUEUES["cpu"]]
    (password,) = manifests["TriggerAuthentication", trigger["authenticationRef"]["name"]]["spec"]["secretTargetRef"]
    assert password["key"] in manifests["Secret", password["name"]]["stringData"]


def test_signing_pods_mount_the_key_at_the_configured_path(manifests: Manifests) -> None:
    data = environment(manifests)
    files = {Path(data[f"LETHE_OPENDSR_{name}_FILE"]) for name in ("KEY", "CERTIFICATE")}
    signing = {name: pod for name, pod in pods(manifests) if name in ("lethe-api", "lethe-sweep")}
    assert len(signing) == 2
    for pod in signing.values():
        (secret,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        folders = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert {Path(folders["opendsr"]) / name for name in manifests["Secret", secret]["stringData"]} == files
