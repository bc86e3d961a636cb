"""Linear regression, on which the affine map is exact and every posterior known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ml.certify.samples import get_reading
from ml.errors import InvalidInput, NumericalFailure
from ml.ladder.climb import Step
from ml.ladder.policy import Policy
from ml.ladder.samples import forget
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior
from vocabulary.rungs import RungName

FAMILY = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
ESTIMATED = Policy(1e-2, level="estimated")
REWEIGHTING = replace(ESTIMATED, rungs=("reweight",))


def rows(n: int = 300) -> torch.Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def samples(data: torch.Tensor, width: float = 1.0) -> SampleSet:
    mean, covariance = exact_posterior(FAMILY, data)
    noise = torch.randn(2000, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    offsets = width * noise @ torch.linalg.cholesky(covariance).T
    return SampleSet(mean + offsets, torch.arange(4).repeat_interleave(500))


def mirrored(data: torch.Tensor) -> SampleSet:
    """Return samples with their mirror images: their mean is exact, without the error of a finite number."""
    drawn, (mean, _) = samples(data), exact_posterior(FAMILY, data)
    return SampleSet(torch.cat([drawn.samples, 2 * mean - drawn.samples]), drawn.chain.repeat(2))


def gradient_norm(data: torch.Tensor, theta: torch.Tensor) -> float:
    """Return the norm of the gradient in closed form: the potential is quadratic around the exact mean."""
    mean, covariance = exact_posterior(FAMILY, data)
    return float(torch.linalg.solve(covariance, theta - mean).norm())


def test_a_single_row_is_forgotten_by_the_weights_alone() -> None:
    data, before = rows(), samples(rows())
    outcome = forget(FAMILY, before, data, torch.arange(1), REWEIGHTING)
    assert [(rung.name, rung.solver) for rung in outcome.rungs] == [("reweight", None)]
    assert (outcome.certificate.level, outcome.policy_met) == ("estimated", True)
    assert torch.equal(outcome.posterior.samples, before.samples)
    mean, covariance = exact_posterior(FAMILY, data[1:])
    gap = torch.linalg.solve(torch.linalg.cholesky(covariance), outcome.posterior.mean - mean)
    assert float(gap.norm()) < 4 * math.sqrt(2 / 2000)


def test_draws_that_stay_are_read_with_their_weights() -> None:
    data = rows()
    loose = replace(REWEIGHTING, epsilon=1.0)
    outcome = forget(FAMILY, samples(data), data, torch.arange(20), loose)
    assert outcome.policy_met
    assert get_reading(outcome.certificate) == "weighted draws"
    assert outcome.certificate.epsilon < 1e-2


def outlying() -> torch.Tensor:
    """Return rows of which the first 20 pull hard: few enough to leave new chains nearly as dear as before."""
    data = rows()
    data[:20, 2] = 1.5 * data[:20, :2].sum(1)
    return data


def few(data: torch.Tensor) -> SampleSet:
    """Return so few draws that moving each of them is cheaper than new chains."""
    drawn = samples(data)
    kept = torch.arange(2000) % 500 < 150
    return SampleSet(drawn.samples[kept], drawn.chain[kept])


def test_a_group_beyond_weights_is_tempered() -> None:
    data = outlying()
    phases: list[tuple[str, float]] = []
    policy = Policy(0.2, level="estimated", rungs=("reweight", "temper"))
    outcome = forget(FAMILY, few(data), data, torch.arange(20), policy, lambda *phase: phases.append(phase))
    assert [(rung.name, rung.level) for rung in outcome.rungs] == [("reweight", "none"), ("temper", "estimated")]
    assert outcome.policy_met
    assert outcome.certificate.reference_kind == "posterior"
    assert outcome.rungs[1].steps == outcome.certificate.constants.stages > 1
    assert not bool(outcome.posterior.log_weights.any())
    mean, covariance = exact_posterior(FAMILY, data[20:])
    gap = torch.linalg.solve(torch.linalg.cholesky(covariance), outcome.posterior.mean - mean)
    assert float(gap.norm()) < 4 * math.sqrt(2 / 600)
    assert phases[-2] == ("temper", 1.0)


def test_draws_that_are_not_of_the_posterior_are_not_tempered() -> None:
    """Moves would mend them, but the certificate would speak of a posterior from which they never came."""
    data = outlying()
    draws = few(data)
    wide = SampleSet(draws.mean + 2 * (draws.samples - draws.mean), draws.chain)
    with pytest.raises(NumericalFailure, match="only draws of the posterior are tempered"):
        forget(FAMILY, wide, data, torch.arange(20), Policy(10.0, level="estimated", rungs=("temper",)))


def test_tempering_dearer_than_new_chains_is_not_tried() -> None:
    data = outlying()
    policy = Policy(1e-9, level="estimated", rungs=("reweight", "temper"))
    outcome = forget(FAMILY, samples(data), data, torch.arange(250), policy)
    assert [(rung.name, rung.steps) for rung in outcome.rungs] == [("reweight", 1), ("temper", 0)]
    assert "new chains" in (outcome.rungs[1].failure or "")
    assert "not tried" in (outcome.rungs[1].failure or "")


def test_a_small_group_is_forgotten_by_the_first_order_map() -> None:
    data = rows()
    outcome = forget(FAMILY, samples(data), data, torch.arange(3), ESTIMATED)
    assert [rung.name for rung in outcome.rungs] == ["influence"]
    assert (outcome.certificate.level, outcome.policy_met) == ("estimated", True)
    assert outcome.certificate.epsilon <= 1e-2


def test_a_large_group_needs_the_full_map_which_is_exact() -> None:
    data = rows()
    phases: list[str] = []
    outcome = forget(FAMILY, samples(data), data, torch.arange(200), ESTIMATED, lambda phase, _: phases.append(phase))
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton"]
    assert outcome.rungs[0].epsilon > 1e-2 >= outcome.certificate.epsilon
    assert outcome.certificate.constants.estimate < 1e-15
    mean, covariance = exact_posterior(FAMILY, data[200:])
    gap = torch.linalg.solve(torch.linalg.cholesky(covariance), outcome.posterior.mean - mean)
    assert float(gap.norm()) < 4 * math.sqrt(2 / 2000)
    assert phases == ["diagnostics", "influence", "newton", "done"]


@pytest.mark.parametrize("rung", ["influence", "newton", "reweight"])
def test_a_rung_reports_the_gradient_it_reached(rung: RungName) -> None:
    data, steps = rows(), list[Step]()
    policy = Policy(1e-2, level="estimated", rungs=(rung,))
    outcome = forget(FAMILY, samples(data), data, torch.arange(3), policy, on_step=steps.append)
    assert [(step.rung, step.step) for step in steps] == [(rung, 1)]
    assert steps[0].residual == pytest.approx(gradient_norm(data[3:], outcome.posterior.mean), rel=1e-6)
    assert 0 < steps[0].seconds <= outcome.seconds


def test_the_full_map_reaches_a_zero_gradient() -> None:
    data, steps = rows(), list[Step]()
    forget(FAMILY, mirrored(data), data, torch.arange(200), ESTIMATED, on_step=steps.append)
    assert [step.rung for step in steps] == ["influence", "newton"]
    first, whole = (step.residual for step in steps)
    # Doing nothing leaves the whole gradient of the forgotten rows, the first order a part of it, the full map none.
    assert gradient_norm(data[200:], exact_posterior(FAMILY, data)[0]) > first > 1e-3
    assert whole < 1e-9 * first
    assert steps[0].seconds < steps[1].seconds


@pytest.mark.slow
def test_a_policy_that_requires_a_proof_needs_new_chains() -> None:
    data, steps = rows(), list[Step]()
    policy = Policy(1e-2, level="proved")
    outcome = forget(FAMILY, samples(data), data, torch.arange(3), policy, on_step=steps.append)
    assert [rung.name for rung in outcome.rungs] == [step.rung for step in steps] == ["retrain"]
    assert steps[0].residual == pytest.approx(gradient_norm(data[3:], outcome.posterior.mean), rel=1e-6)
    assert (outcome.certificate.level, outcome.certificate.epsilon, outcome.policy_met) == ("retrained", 0.0, True)
    mean, covariance = exact_posterior(FAMILY, data[3:])
    assert torch.allclose(outcome.posterior.mean, mean, rtol=0, atol=0.2 * float(covariance.diagonal().max().sqrt()))


def test_samples_that_are_too_wide_are_not_certified() -> None:
    data = rows()
    policy = Policy(1e-2, level="estimated", rungs=("influence", "newton", "reweight"))
    outcome = forget(FAMILY, samples(data, width=1.5), data, torch.arange(3), policy)
    assert (outcome.certificate.level, outcome.policy_met) == ("none", False)
    assert any("passed their diagnostics" in reason for reason in outcome.certificate.reasons)
    assert all("passed their diagnostics" in (rung.failure or "") for rung in outcome.rungs)


def test_a_policy_without_a_rung_for_samples_fails() -> None:
    data = rows()
    with pytest.raises(NumericalFailure, match="allow influence, newton, reweight, temper or retrain"):
        forget(FAMILY, samples(data), data, torch.arange(3), Policy(1.0, rungs=("warm",)))
    with pytest.raises(NumericalFailure, match="'estimated' at most without retraining: allow the rung retrain"):
        forget(FAMILY, samples(data), data, torch.arange(3), Policy(1.0, rungs=("influence", "warm")))


def worn(data: torch.Tensor) -> SampleSet:
    """Return samples whose weights move the mean by three standard deviations, so that few are left."""
    drawn, (mean, covariance) = samples(data), exact_posterior(FAMILY, data)
    direction = torch.linalg.cholesky(covariance)[:, 0]
    offset = drawn.samples - 3 * direction
    return replace(drawn, samples=offset, log_weights=-3 * (offset - mean) @ torch.linalg.solve(covariance, direction))


@pytest.mark.slow
def test_worn_weights_lead_to_new_chains_which_start_afresh() -> None:
    data = rows()
    outcome = forget(FAMILY, worn(data), data, torch.arange(3), ESTIMATED)
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton", "retrain"]
    for rung in outcome.rungs[:-1]:
        assert rung.failure is not None
        assert rung.failure.startswith("the weights are worn out: ")
        assert "new chains restore them" in rung.failure
        assert rung.seconds < 0.5
    assert (outcome.certificate.level, outcome.policy_met) == ("retrained", True)
    assert not bool(outcome.posterior.log_weights.any())
    again = forget(FAMILY, outcome.posterior, data[3:], torch.arange(1), ESTIMATED)
    assert [rung.name for rung in again.rungs] == ["influence"]


def test_worn_weights_ask_for_the_rung_that_restores_them() -> None:
    data = rows()
    policy = Policy(1e-2, level="estimated", rungs=("influence", "newton", "reweight"))
    with pytest.raises(NumericalFailure, match=r"newton, reweight: the weights are worn out.*rung retrain"):
        forget(FAMILY, worn(data), data, torch.arange(3), policy)


def test_deletions_one_after_another_are_certified_together() -> None:
    """A sequence that only weighs: its last certificate is that of one deletion of all the rows."""
    data = rows()
    policy = Policy(1.0, level="estimated", rungs=("reweight",))
    sample_set, retained = samples(data), data
    for _ in range(10):
        outcome = forget(FAMILY, sample_set, retained, torch.arange(2), policy)
        sample_set, retained = outcome.posterior, retained[2:]
    at_once = forget(FAMILY, samples(data), data, torch.arange(20), policy)
    assert torch.allclose(sample_set.log_weights, at_once.posterior.log_weights, rtol=0, atol=1e-10)
    assert outcome.certificate.constants.estimate == pytest.approx(at_once.certificate.constants.estimate, rel=1e-9)


def test_a_budget_ends_the_climb() -> None:
    data = rows()
    policy = Policy(1e-12, level="estimated", seconds=1e-9)
    outcome = forget(FAMILY, samples(data), data, torch.arange(200), policy)
    assert [rung.name for rung in outcome.rungs] == ["influence"]
    assert not outcome.policy_met


def test_rows_that_cannot_be_forgotten_are_invalid_input() -> None:
    data = rows()
    with pytest.raises(InvalidInput, match="at least one"):
        forget(FAMILY, samples(data), data, torch.tensor([], dtype=torch.int64), ESTIMATED)


def test_samples_at_a_saddle_are_resampled_from_where_training_begins() -> None:
    """All draws are 0, where both components of a mixture are equal: no Newton step leaves that point."""
    family = GaussianMixture(2, 1, prior_std=3.0)
    data = torch.cat([torch.full((20, 1), -4.0), torch.full((20, 1), 4.0)]).double()
    before = SampleSet(torch.zeros(40, 2, dtype=torch.float64), torch.arange(40) % 4)
    outcome = forget(family, before, data, torch.arange(2), replace(ESTIMATED, rungs=("retrain",)))
    assert outcome.policy_met
    assert sorted(outcome.posterior.mean.round().tolist()) == [-4.0, 4.0]
