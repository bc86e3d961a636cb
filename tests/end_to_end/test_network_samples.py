"""A sample set of a network on a real service, under either reference."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch
from safetensors.numpy import load

from examples.models import Example, forget, person, register
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from tests.end_to_end.conftest import Running
from tests.ml.networks import learnable_rows

pytestmark = pytest.mark.slow

CONFIG = {"dimensions": 3, "hidden": 4, "classes": 3, "prior_std": 0.5}
EXAMPLE = Example("mlp", CONFIG, learnable_rows(MLP(**CONFIG), 200, seed=1))
WEIGHING: dict[str, Any] = {"epsilon": 0.1, "level": "estimated", "rungs": ["reweight"]}


def gaussian_draws() -> bytes:
    """Return draws of four chains with a law of their own: a Gaussian, which no posterior of the network is."""
    generator = torch.Generator().manual_seed(4)
    centre = MLP(**CONFIG).initial(0).mean
    noise = torch.randn(1200, len(centre), generator=generator, dtype=torch.float64)
    return SampleSet(centre + 0.1 * noise, torch.arange(1200) // 300).to_bytes()


def test_draws_that_are_not_of_the_posterior_are_certified_only_against_themselves(up: Running) -> None:
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        policy = {**WEIGHING, "rungs": ["reweight", "retrain"], "reference": "stored draws"}
        model_id = register(engineer, EXAMPLE, "samples", gaussian_draws(), policy)["id"]
        checked = forget(engineer, compliance, model_id, row=0)
        after, picked = load(engineer.posterior(model_id)), load(engineer.draws(model_id, 20))
        _check_certificate(checked.predicate)
        assert any(check.startswith("reference: the stored draws (weaker promise)") for check in checked.checks)
        assert set(after) == {"samples", "chain", "log_weights", "log_weights_error"}
        assert set(picked) == {"samples"}
        assert set(map(tuple, picked["samples"])) <= set(map(tuple, after["samples"]))
        _check_page(up, checked.predicate["certificate"])

        strict = register(engineer, EXAMPLE, "samples", gaussian_draws(), WEIGHING)["id"]
        deletion = compliance.wait(compliance.delete([person(0)], models=[strict])["id"])
    (target,) = deletion["models"]
    assert (deletion["status"], target["certificate"]) == ("failed", None)
    assert "reweight" in target["failure"]
    assert "the chains that drew the samples passed their diagnostics" in target["failure"]


def _check_certificate(predicate: dict[str, Any]) -> None:
    bound, (rung,) = predicate["bound"], predicate["rungs"]
    assert (bound["level"], bound["reference_kind"], rung["name"]) == ("estimated", "stored draws", "reweight")
    assert 0 < bound["epsilon"] <= 0.1
    assert predicate["policy"]["reference"] == "stored draws"
    assert (predicate["model"]["family"], predicate["model"]["posterior"]) == ("mlp", "samples")


def _check_page(up: Running, certificate: str) -> None:
    headers = {"Authorization": f"Bearer {(up.data_dir / 'tokens' / 'auditor.token').read_text()}"}
    page = httpx.get(f"{up.url}/api/v1/certificates/{certificate}.html", headers=headers).raise_for_status().text
    assert "the stored draws (weaker promise)" in page
    assert "for which no divergence is bounded" not in page
