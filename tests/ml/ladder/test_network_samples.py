from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.certify.samples import get_reading
from ml.errors import NumericalFailure
from ml.inference.chains import Chains
from ml.inference.sgld import SGLD, StepSize
from ml.ladder.climb import Step
from ml.ladder.network_samples import forget
from ml.ladder.policy import Policy
from ml.models.potential import Potential
from tests.ml.network_draws import NETWORK, draws, rows, scaled

FORGOTTEN = torch.tensor([3])
REWEIGHTING = Policy(1.0, level="estimated", rungs=("reweight",))
SHORT = Chains(SGLD(StepSize(0.05, 0.0)), iterations=40, burn_in=20, batch_size=64, count=2)


def test_one_row_is_forgotten_by_weights_alone() -> None:
    steps: list[Step] = []
    outcome = forget(NETWORK, draws(), rows(), FORGOTTEN, REWEIGHTING, on_step=steps.append)
    assert (outcome.certificate.level, outcome.policy_met) == ("estimated", True)
    assert torch.equal(outcome.posterior.samples, draws().samples)
    misfit = Potential(NETWORK, rows()[FORGOTTEN], with_prior=False).values(draws().samples)
    assert torch.allclose(outcome.posterior.log_weights, misfit - misfit.mean())
    assert get_reading(outcome.certificate) == "weighted draws"
    assert [(step.rung, step.residual) for step in steps] == [("reweight", outcome.certificate.constants.estimate)]


def test_weights_of_float32_rows_are_computed_in_float64() -> None:
    single = forget(NETWORK, draws(), rows().float(), FORGOTTEN, REWEIGHTING)
    misfit = Potential(NETWORK, rows().float().double()[FORGOTTEN], with_prior=False).values(draws().samples)
    assert torch.equal(single.posterior.log_weights, misfit - misfit.mean())
    assert single.posterior.log_weights_error < 1e-12


def test_weights_accumulate_over_deletions() -> None:
    first = forget(NETWORK, draws(), rows(), FORGOTTEN, REWEIGHTING).posterior
    remaining = rows()[torch.arange(100) != 3]
    second = forget(NETWORK, first, remaining, torch.tensor([0]), REWEIGHTING).posterior
    both = forget(NETWORK, draws(), rows(), torch.tensor([0, 3]), REWEIGHTING).posterior
    assert torch.allclose(second.log_weights, both.log_weights)


def test_the_papers_map_is_a_rung_with_weights_of_its_own() -> None:
    policy = Policy(1.0, level="estimated", rungs=("influence",))
    outcome = forget(NETWORK, draws(), rows(), FORGOTTEN, policy)
    drift = outcome.posterior.samples - draws().samples
    assert torch.allclose(drift, drift[0].expand_as(drift))
    assert float(drift.abs().max()) > 0
    assert (outcome.certificate.level, outcome.certificate.reference_kind) == ("estimated", "posterior")


def test_a_map_that_costs_more_than_new_chains_is_not_taken() -> None:
    policy = Policy(1.0, level="estimated", rungs=("influence", "reweight"))
    outcome = forget(NETWORK, draws(), rows(), FORGOTTEN, policy, chains=SHORT)
    influence, reweight = outcome.rungs
    assert influence.failure is not None
    assert influence.failure.startswith("not taken: weights of moved draws need 2.4e+05 passes")
    assert (reweight.name, outcome.policy_met) == ("reweight", True)


def test_draws_of_another_law_are_not_moved() -> None:
    policy = Policy(1.0, level="estimated", rungs=("influence",), reference="stored draws")
    with pytest.raises(NumericalFailure, match="hold for draws of the posterior only"):
        forget(NETWORK, scaled(2.0), rows(), FORGOTTEN, policy)


def test_a_group_is_tempered_by_exact_moves() -> None:
    policy = Policy(1.0, level="estimated", rungs=("temper",))
    steps: list[Step] = []
    long = replace(SHORT, iterations=10_000)
    outcome = forget(NETWORK, draws(), rows(), torch.arange(4), policy, on_step=steps.append, chains=long)
    assert (outcome.certificate.level, outcome.certificate.reference_kind) == ("estimated", "posterior")
    assert not bool(outcome.posterior.log_weights.any())
    assert not bool((outcome.posterior.samples == draws().samples).all(1).any())
    assert [(step.rung, step.step) for step in steps] == [("temper", outcome.certificate.constants.stages)]


def test_tempering_that_costs_more_than_new_chains_is_not_taken() -> None:
    policy = Policy(1.0, level="estimated", rungs=("temper",))
    with pytest.raises(NumericalFailure, match=r"not taken: tempering needs .* new chains"):
        forget(NETWORK, draws(), rows(), torch.arange(4), policy, chains=SHORT)


def test_draws_of_another_law_are_not_tempered() -> None:
    policy = Policy(1.0, level="estimated", rungs=("temper",), reference="stored draws")
    with pytest.raises(NumericalFailure, match="certified as draws of the posterior only"):
        forget(NETWORK, scaled(2.0), rows(), FORGOTTEN, policy)


def test_new_chains_start_where_no_row_has_been() -> None:
    """Draws before the deletion do not matter: those of other chains lead to the same ones."""
    policy = Policy(1e-3, level="retrained", rungs=("retrain",))
    outcome = forget(NETWORK, draws(), rows(), FORGOTTEN, policy, chains=SHORT)
    assert (outcome.certificate.level, outcome.certificate.epsilon, outcome.policy_met) == ("retrained", 0.0, True)
    assert outcome.certificate.reference_kind is None
    other = forget(NETWORK, scaled(2.0), rows(), FORGOTTEN, policy, chains=SHORT)
    assert torch.equal(outcome.posterior.samples, other.posterior.samples)
    assert not bool(outcome.posterior.log_weights.any())


def test_worn_weights_lead_to_new_chains() -> None:
    worn = replace(draws(), log_weights=8 * draws().samples[:, 0])
    policy = Policy(1.0, level="estimated", rungs=("influence", "reweight", "retrain"))
    outcome = forget(NETWORK, worn, rows(), FORGOTTEN, policy, chains=SHORT)
    assert [rung.name for rung in outcome.rungs] == ["influence", "reweight", "retrain"]
    assert all("worn out" in (rung.failure or "") for rung in outcome.rungs[:2])
    assert outcome.certificate.level == "retrained"
