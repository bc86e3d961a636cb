"""The examples of every family and kind of posterior, on a real service."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from examples.models import KINDS, POLICIES, ROWS_EACH, Example, NetworkExample, examples, person, register
from lethe.verify import Verified, verify
from ml.models.linear import LinearRegression
from ml.posteriors.sample_set import SampleSet
from tests.end_to_end.conftest import Running
from tests.ml.exact_posterior import exact_posterior

pytestmark = pytest.mark.slow

ROW = 4  # one of the four rows of the deleted person
RETAINED = [row for row in range(200) if row // ROWS_EACH != ROW // ROWS_EACH]
EXACT = {"epsilon": 1e-20, "level": "proved"}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Example, str]]:
    """All examples but networks, which test_networks.py has."""
    families = [example for example in examples() if not isinstance(example, NetworkExample)]
    return {
        f"{example.family}, {kind}": (example, kind) for example in families for kind in KINDS if example.policy(kind)
    }


def test_one_deletion_reaches_models_of_every_kind(up: Running, models: dict[str, tuple[Example, str]]) -> None:
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        posteriors, ids = {}, {}
        for name, (example, kind) in models.items():
            posterior = example.posterior(kind)
            policy = EXACT if name == "linear-regression, variational" else POLICIES[kind]
            model = register(engineer, example, kind, posterior, policy)
            assert (model["family"], model["posterior"]) == (example.family, kind)
            ids[name], posteriors[name] = model["id"], engineer.posterior(model["id"])
        advice = {name: engineer.readiness(model_id)["advice"] for name, model_id in ids.items()}
        assert advice == {name: [] for name in models}
        ended = compliance.wait(compliance.delete([person(ROW)])["id"])
        assert ended["status"] == "completed", ended
        links = {part["model_id"]: part["certificate"] for part in ended["models"]}
        assert set(links) == set(ids.values())
        for name, (example, kind) in models.items():
            after = engineer.posterior(ids[name])
            assert after != posteriors[name]
            checked = verify(compliance.certificate(links[ids[name]]), compliance.keys(), after)
            _check_certificate(checked, kind)
            if example.family == "linear-regression":
                _check_truth(example, kind, after)
    _check_audit(up, ids)


def _check_certificate(checked: Verified, kind: str) -> None:
    bound, policy = checked.predicate["bound"], checked.predicate["policy"]
    assert checked.predicate["model"]["posterior"] == kind
    assert checked.predicate["records"] == {"before": 200, "after": 196, "forgotten_in_batch": 4}
    assert 0 < bound["epsilon"] <= policy["epsilon"]
    assert bound["level"] == policy["level"] == {"variational": "proved", "samples": "estimated"}[kind]
    if kind == "samples":
        assert bound["epsilon_reverse"] is None
        assert bound["interval"][1] == bound["epsilon"]
        assert bound["constants"]["draws"] == 2000


def _check_truth(example: Example, kind: str, after: bytes) -> None:
    """Compare a linear regression with the closed form of its posterior on the retained rows."""
    family = LinearRegression(**example.config)
    retained = example.data[RETAINED]
    if kind == "variational":
        optimum = family.optimum(retained)
        processed = load(after)
        assert np.allclose(processed["mean"], optimum.mean, rtol=0, atol=1e-12)
        assert np.allclose(processed["std"], optimum.std, rtol=0, atol=1e-12)
        assert not np.allclose(processed["mean"], family.optimum(example.data).mean, rtol=0, atol=1e-6)
    else:
        mean, covariance = exact_posterior(family, retained)
        weighted = SampleSet.from_bytes(after)
        assert bool(weighted.log_weights.any())
        distance = torch.linalg.solve(torch.linalg.cholesky(covariance), weighted.mean - mean)
        assert float(distance.abs().max()) < 0.1  # four standard errors of 2,000 draws
        assert torch.allclose(weighted.covariance, covariance, rtol=0.1, atol=0.05 * float(covariance.max()))


def _check_audit(up: Running, ids: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {(up.data_dir / 'tokens' / 'auditor.token').read_text()}"}
    with httpx.Client(base_url=up.url, headers=headers) as auditor:
        items = auditor.get("/api/v1/audit/bounds").raise_for_status().json()["items"]
        table = auditor.get("/api/v1/audit/bounds", headers={"Accept": "text/csv"}).raise_for_status().text
    bounds = {bound["model_id"]: bound for bound in items}
    for name, model_id in ids.items():
        estimated = name.endswith("samples")
        assert bounds[model_id]["level"] == ("estimated" if estimated else "proved")
        assert (bounds[model_id]["interval"] is None) != estimated
        assert (bounds[model_id]["epsilon_reverse"] is None) == estimated
    assert len(table.splitlines()) == 1 + len(ids)
    assert "nan" not in table.lower()
