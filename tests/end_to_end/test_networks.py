"""The example of a network on a real service, with its printed certificate."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import torch
from safetensors.numpy import load

from examples.models import NETWORK_POLICY, forget, network_example, register
from tests.end_to_end.conftest import Running

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread: for a network this small a second costs more than it saves, on a busy machine ten times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_network_forgets_a_person_and_its_certificate_is_an_estimate(up: Running) -> None:
    example = network_example()
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        before = example.posterior("variational")
        model = register(engineer, example, "variational", before, NETWORK_POLICY)
        ready = engineer.readiness(model["id"])
        assert (ready["levels"], ready["advice"]) == (["estimated"], [])
        checked = forget(engineer, compliance, model["id"], row=0)
        after = engineer.posterior(model["id"])
    bound, effects = checked.predicate["bound"], checked.predicate["effects"]
    assert checked.predicate["records"] == {"before": 1000, "after": 996, "forgotten_in_batch": 4}
    assert (bound["level"], bound["epsilon_reverse"]) == ("estimated", None)
    assert 0 < bound["interval"][0] < bound["interval"][1] == bound["epsilon"] <= 0.1
    assert 2 * bound["epsilon"] < bound["constants"]["excess_of_nothing"]
    assert "for the network itself" in bound["direction"]
    assert (effects["release"], effects["pac_bayes"]["after"]["rows"]) == ([], 996)
    assert not (load(after)["mean"] == load(before)["mean"]).any()
    _check_audit_and_print(up, model["id"], checked.predicate["certificate"])


def _check_audit_and_print(up: Running, model_id: str, certificate: str) -> None:
    headers = {"Authorization": f"Bearer {(up.data_dir / 'tokens' / 'auditor.token').read_text()}"}
    with httpx.Client(base_url=up.url, headers=headers) as auditor:
        (audited,) = auditor.get("/api/v1/audit/bounds").raise_for_status().json()["items"]
        page = auditor.get(f"/api/v1/certificates/{certificate}.html").raise_for_status().text
        (job,) = auditor.get("/api/v1/jobs").raise_for_status().json()["items"]
        (step,) = auditor.get(f"/api/v1/jobs/{job['id']}").raise_for_status().json()["residuals"]
    assert (audited["model_id"], audited["level"], audited["epsilon_reverse"]) == (model_id, "estimated", None)
    assert "The model is a network, for which no divergence is bounded." in page
    assert step["rung"] == "influence"
