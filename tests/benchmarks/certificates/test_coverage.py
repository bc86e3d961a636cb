from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks.certificates import coverage as module
from benchmarks.certificates.coverage import CASES, MAPS, Trial, coverage, summarise
from benchmarks.certificates.coverage_truth import KnownPosterior
from ml.errors import InvalidInput
from ml.forgetting.samples import affine_map_matrix_free
from ml.inference.laplace import fit_laplace
from ml.models.logistic import LogisticRegression
from ml.models.potential import Potential
from tests.ml.likelihoods import LinearRegression, regression_data


def trial(kl: float, low: float | None, epsilon: float | None, k_hat: float = 0.2) -> Trial:
    return Trial("linear", "shift", "uniform", 1, 9, kl, low, epsilon, k_hat, ())


def test_trials_are_counted() -> None:
    outcomes = (
        trial(1.0, 0.5, 1.5),
        trial(1.0, 1.0, 1.0),
        trial(1.0, 1.1, 1.5),
        trial(1.0, 0.5, 0.9),
        trial(1.0, None, None),
        trial(1.0, None, None, k_hat=0.8),
        trial(1.0, None, None, k_hat=math.nan),
        trial(1.0, 0.5, 1.5, k_hat=0.71),  # would be a fault of the certificate, and has to show
    )
    report = summarise(outcomes, seed=3)
    assert (report.trials, report.issued, report.covered, report.refused) == (8, 5, 3, 3)
    assert report.above == 1
    assert (report.heavy_tailed, report.refused_k_hat) == (3, 2)
    assert report.share == 0.6
    assert "outcomes" not in report.to_dict()


def test_where_nothing_is_issued_there_is_no_share() -> None:
    report = summarise((trial(1.0, None, None),), seed=0)
    assert math.isnan(report.share)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["share"] is None


def test_a_run_can_be_repeated_and_reports_its_progress() -> None:
    stages: list[tuple[str, float]] = []
    first = coverage(len(CASES), 1, lambda phase, share: stages.append((phase, share)))
    assert first == coverage(len(CASES), 1)
    assert stages == [("trials", index / 5) for index in range(5)] + [("done", 1.0)]
    assert [(trial.family, trial.map) for trial in first.outcomes] == list(CASES)
    assert {trial.map for trial in first.outcomes} == set(MAPS)
    assert all(trial.kl > 0 for trial in first.outcomes)
    assert first.issued + first.refused == 5
    assert all(trial.reasons for trial in first.outcomes if not trial.issued)


def test_no_trials_are_no_run() -> None:
    with pytest.raises(InvalidInput, match="pass at least 1"):
        coverage(0, 0)


def test_a_map_rebuilt_from_a_few_points_is_the_map() -> None:
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(3), regression_data(100, 3, generator)
    mean, covariance = likelihood.posterior(data)
    noise = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    samples = mean + noise @ torch.linalg.cholesky(covariance).T
    whole = affine_map_matrix_free(likelihood, samples, data, torch.arange(9))
    rebuilt, moved_by = module._move_samples(affine_map_matrix_free, likelihood, samples, data, torch.arange(9))
    assert torch.allclose(rebuilt.samples, whole.samples, rtol=0, atol=1e-6)
    assert not torch.allclose(rebuilt.samples, samples, rtol=0, atol=1e-3)
    assert torch.allclose(moved_by.forwards(samples), rebuilt.samples)


def test_the_chains_have_the_law_of_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, so that the posterior is far from its Laplace fit: the weighed proposals say how far."""
    monkeypatch.setattr(module, "_DRAWS_PER_CHAIN", 5000)
    likelihood = LogisticRegression(2, prior_std=3.0, draws=2, seed=0)
    rows = torch.tensor([[1.0, 0.2, 1], [0.8, -0.5, 1], [-0.3, 1.0, 0], [0.5, 1.5, 1]], dtype=torch.float64)
    potential = Potential(likelihood, rows)
    posterior = KnownPosterior(potential, fit_laplace(potential, rows.new_zeros(2)))
    noise = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta = posterior.from_white(noise)
    mass = torch.softmax(0.5 * noise.square().sum(1) - posterior.values(theta), 0)
    std = posterior.laplace.hessian.inverse().diagonal().sqrt()
    samples, diagnostics = module._sample_chains(posterior, torch.Generator().manual_seed(2))
    bias = (mass @ theta - posterior.laplace.mode) / std
    assert float(bias.abs().max()) > 0.2
    assert float(((samples.mean - mass @ theta) / std).abs().max()) < 0.1
    assert diagnostics.ess > 400


@pytest.mark.slow
def test_intervals_hold_the_truth_and_heavy_tails_are_refused() -> None:
    report = coverage(200, 0)
    assert report.trials == 200
    assert report.issued >= 150
    assert report.share >= 0.93
    assert report.above <= 0.03 * report.issued
    assert report.refused_k_hat == report.heavy_tailed >= 3
    for name in MAPS:
        assert sum(trial.issued for trial in report.outcomes if trial.map == name) >= 20
