from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.service import people
from benchmarks.service.people import Case, bench_people, build_case, people_table
from ml.errors import InvalidInput
from ml.inference.network_chains import configure
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from tests.ml.networks import learnable_rows

CONFIG: dict[str, Any] = {"dimensions": 3, "hidden": 4, "classes": 3, "prior_std": 0.5}


class Linear:
    """log p(z | θ) = θ z."""

    def log_likelihood(self, theta: Tensor, rows: Tensor) -> Tensor:
        return rows[:, 0] * theta


def sample_set(*thetas: float, log_weights: tuple[float, ...] | None = None) -> SampleSet:
    samples = torch.tensor(thetas, dtype=torch.float64).unsqueeze(1)
    chain = torch.zeros(len(thetas), dtype=torch.int64)
    if log_weights is None:
        return SampleSet(samples, chain)
    return SampleSet(samples, chain, torch.tensor(log_weights, dtype=torch.float64))


def test_the_truth_of_two_values_has_a_closed_form() -> None:
    """e^s is 1 or 2, so Z = 3/2 and w = 3/2 or 3/4."""
    row = torch.ones(1, 1, dtype=torch.float64)
    truth = people._truth(Linear(), [sample_set(0.0, 0.0), sample_set(math.log(2), math.log(2))], row, 10.0)  # type: ignore[arg-type]
    assert truth == pytest.approx((math.log1p(0.05) + math.log1p(-0.025)) / 2, rel=1e-12)


def test_the_loss_is_that_of_the_weighted_prediction() -> None:
    row = torch.ones(1, 1, dtype=torch.float64)
    draws = sample_set(math.log(0.5), math.log(0.25), log_weights=(math.log(3.0), 0.0))
    loss = people._loss(Linear(), draws, row)  # type: ignore[arg-type]
    assert loss == pytest.approx(-math.log(0.75 * 0.5 + 0.25 * 0.25), rel=1e-12)


def test_an_unknown_case_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown case 'resnet': choose among mlp"):
        bench_people(["resnet"], tmp_path / "out", None)


def test_larger_groups_contain_the_smaller_ones_and_rounds_have_nobody_in_common() -> None:
    case = replace(build_case("mlp", None), rounds=2)
    assert case.forgotten(4)[:1].tolist() == case.forgotten(1).tolist()
    assert len({*case.forgotten(4).tolist(), *case.forgotten(4, 1).tolist()}) == case.everybody == 8


@pytest.mark.soak
def test_a_service_forgets_a_person_and_the_bound_covers_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MLP(**CONFIG)
    rows = learnable_rows(network, 200, seed=1)
    chains = replace(configure(network, len(rows)), iterations=400)
    case = Case("tiny", "mlp", CONFIG, network, rows, chains, chains, (1,), 1, "posterior", exact=True)
    monkeypatch.setattr(people, "build_case", lambda _name, _data: case)

    (content,) = bench_people(["tiny"], tmp_path, None)

    (group,) = content["groups"]
    assert (group["level"], group["reference"]) == ("estimated", "posterior")
    assert 0 < group["truth"] <= group["epsilon"] <= 1.0
    assert group["worker_seconds"] > 0
    # Forgotten rows are predicted less well; each set without them was drawn by itself.
    assert group["loss_after"] > group["loss_before"]
    assert group["losses_without"][0] != group["losses_without"][1]
    assert {file.name for file in tmp_path.glob("*.safetensors")} == {
        *(f"tiny-without{size}-seed{seed}.safetensors" for size, seed in ((0, 1), (1, 2), (1, 3)))
    }
    assert group["refused"] is None
    refused = {**group, "refused": "worn out", **dict.fromkeys(("epsilon", "truth", "loss_after"))}
    table = people_table({**content, "groups": [group, refused]})
    assert list(table.columns[1].cells) == [f"{group['epsilon']:.3g}", "refused"]
