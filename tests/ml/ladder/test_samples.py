"""Linear regression, on which the affine map is exact and every posterior known."""

from __future__ import annotations

import math

import pytest
import torch

from ml.errors import InvalidInput, NumericalFailure
from ml.ladder.climb import Step
from ml.ladder.policy import Policy
from ml.ladder.samples import forget
from ml.models.linear import LinearRegression
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior
from vocabulary.rungs import RungName

FAMILY = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
ESTIMATED = Policy(1e-2, level="estimated")


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


def test_a_small_group_is_forgotten_by_the_first_order_map() -> None:
    data = rows()
    outcome = forget(FAMILY, samples(data), data, torch.arange(3), ESTIMATED)
    assert [rung.name for rung in outcome.rungs] == ["influence"]
    assert (outcome.certificate.level, outcome.policy_met) == ("estimated", True)
    assert outcome.certificate.epsilon <= 1e-2


def test_a_large_group_needs_the_full_map_which_is_exact() -> None:
    data = rows()
    phases: list[str] = []
    policy = Policy(1e-6, level="estimated")
    outcome = forget(FAMILY, samples(data), data, torch.arange(120), policy, lambda phase, _: phases.append(phase))
    assert [rung.name for rung in outcome.rungs] == ["influence", "newton"]
    assert outcome.rungs[0].epsilon > 1e-6 >= outcome.certificate.epsilon
    mean, covariance = exact_posterior(FAMILY, data[120:])
    gap = torch.linalg.solve(torch.linalg.cholesky(covariance), outcome.posterior.mean - mean)
    assert float(gap.norm()) < 4 * math.sqrt(2 / 2000)
    assert phases == ["diagnostics", "influence", "newton", "done"]


@pytest.mark.parametrize("rung", ["influence", "newton"])
def test_a_rung_reports_the_gradient_it_reached(rung: RungName) -> None:
    data, steps = rows(), list[Step]()
    policy = Policy(1e-2, level="estimated", rungs=(rung,))
    outcome = forget(FAMILY, samples(data), data, torch.arange(3), policy, on_step=steps.append)
    assert [(step.rung, step.step) for step in steps] == [(rung, 1)]
    assert steps[0].residual == pytest.approx(gradient_norm(data[3:], outcome.posterior.mean), rel=1e-6)
    assert 0 < steps[0].seconds <= outcome.seconds


def test_the_full_map_reaches_a_zero_gradient() -> None:
    data, steps = rows(), list[Step]()
    policy = Policy(1e-6, level="estimated")
    forget(FAMILY, mirrored(data), data, torch.arange(120), policy, on_step=steps.append)
    assert [step.rung for step in steps] == ["influence", "newton"]
    first, whole = (step.residual for step in steps)
    # Doing nothing leaves the whole gradient of the forgotten rows, the first order a part of it, the full map none.
    assert gradient_norm(data[120:], exact_posterior(FAMILY, data)[0]) > first > 1e-3
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
    policy = Policy(1e-2, level="estimated", rungs=("influence", "newton"))
    outcome = forget(FAMILY, samples(data, width=1.5), data, torch.arange(3), policy)
    assert (outcome.certificate.level, outcome.policy_met) == ("none", False)
    assert any("times as wide" in reason for reason in outcome.certificate.reasons)


def test_a_policy_without_a_rung_for_samples_fails() -> None:
    data = rows()
    with pytest.raises(NumericalFailure, match="allow influence, newton or retrain"):
        forget(FAMILY, samples(data), data, torch.arange(3), Policy(1.0, rungs=("influence", "warm")))


def test_a_budget_ends_the_climb() -> None:
    data = rows()
    policy = Policy(1e-12, level="estimated", seconds=1e-9)
    outcome = forget(FAMILY, samples(data), data, torch.arange(120), policy)
    assert [rung.name for rung in outcome.rungs] == ["influence"]
    assert not outcome.policy_met


def test_rows_that_cannot_be_forgotten_are_invalid_input() -> None:
    data = rows()
    with pytest.raises(InvalidInput, match="at least one"):
        forget(FAMILY, samples(data), data, torch.tensor([], dtype=torch.int64), ESTIMATED)
