"""Promises of the Kubernetes manifests, and their validity by the official schemas."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
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


def environment(manifests: Manifests, name: str = "lethe-api") -> dict[str, str]:
    """Return the environment of a pod."""
    (container,) = dict(pods(manifests))[name]["containers"]
    assert "env" not in container
    variables: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            variables |= manifests["ConfigMap", source["configMapRef"]["name"]]["data"]
        else:
            variables |= manifests["Secret", source["secretRef"]["name"]]["stringData"]
    return variables


def test_pods_get_only_known_variables(manifests: Manifests) -> None:
    for name, _ in pods(manifests):
        assert all(map(is_known_variable, environment(manifests, name)))


def test_the_api_alone_has_the_identity_key(manifests: Manifests) -> None:
    holders = [name for name, _ in pods(manifests) if "LETHE_IDENTITY_KEY" in environment(manifests, name)]
    assert holders == ["lethe-api"]
    signers = {name for name, _ in pods(manifests) if "LETHE_LOG_KEY" in environment(manifests, name)}
    assert {"lethe-api", "lethe-worker", "lethe-sweep"} <= signers


def test_pods_may_only_talk_to_what_they_need(manifests: Manifests) -> None:
    policies = {name: manifest["spec"] for (kind, name), manifest in manifests.items() if kind == "NetworkPolicy"}
    assert policies["lethe-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    names = {name for name, _ in pods(manifests)}
    ports: dict[str, set[object]] = {name: set() for name in names}
    for policy in policies.values():
        for rule in policy.get("egress", []):
            assert rule["to"], "no rule allows all destinations"
            for name in selected(policy["podSelector"], names):
                ports[name] |= {port["port"] for port in rule["ports"]}
    assert ports == {
        "lethe-api": {53, 5432, 6379, 443},
        "lethe-worker": {53, 5432, 6379, 443},
        "lethe-sweep": {53, 5432, 6379, 443},
        "lethe-migrate": {53, 5432},
    }
    receivers = [selected(policy["podSelector"], names) for policy in policies.values() if "ingress" in policy]
    assert receivers == [["lethe-api"]]


def test_only_the_sweep_reaches_the_internet_and_nothing_private_there(manifests: Manifests) -> None:
    reaching = {
        name: block
        for (kind, name), manifest in manifests.items()
        if kind == "NetworkPolicy"
        for rule in manifest["spec"].get("egress", [])
        for peer in rule["to"]
        if (block := peer.get("ipBlock")) and ip_network(block["cidr"]).prefixlen == 0
    }
    assert set(reaching) == {"lethe-callbacks"}
    policy = manifests["NetworkPolicy", "lethe-callbacks"]["spec"]
    assert selected(policy["podSelector"], {"lethe-sweep", "lethe-api"}) == ["lethe-sweep"]
    excluded = [ip_network(cidr) for peer in policy["egress"][0]["to"] for cidr in peer["ipBlock"]["except"]]
    for address in ("10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "fd00::1", "fe80::1"):
        assert any(ip_address(address) in network for network in excluded)


def selected(selector: dict[str, Any], names: set[str]) -> list[str]:
    """Return the pods that a policy selects, by their label, which is their name."""
    if not selector:
        return sorted(names)
    if "matchLabels" in selector:
        return [selector["matchLabels"]["app.kubernetes.io/name"]]
    (expression,) = selector["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("app.kubernetes.io/name", "In")
    assert set(expression["values"]) <= names
    return list(expression["values"])


def test_a_placeholder_secret_is_refused_by_name(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, value in environment(manifests).items():
        monkeypatch.setenv(variable, value)
    secrets = {
        "DATABASE_URL": "postgresql://lethe:x7f3@postgres/lethe",
        "REDIS_URL": "redis://:x7f3@redis:6379/0",
        "LETHE_SIGNING_KEY": new_key(),
        "LETHE_LOG_KEY": new_key(),
        "LETHE_IDENTITY_KEY": new_key(),
    }
    for variable, value in secrets.items():
        with pytest.raises(ConfigurationError, match=f"^{variable} .*placeholder"):
            load_settings().identity_keys()  # as the API does
        monkeypatch.setenv(variable, value)
    load_settings().identity_keys()
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
