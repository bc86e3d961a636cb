from __future__ import annotations

import pytest
import torch

from benchmarks.certificates import coverage as module
from benchmarks.certificates.coverage import CASES, LENGTHS, MAPS, REWEIGHT, coverage
from benchmarks.certificates.coverage_truth import KnownPosterior
from ml.errors import InvalidInput
from ml.forgetting.samples import affine_map_matrix_free
from ml.inference.laplace import fit_laplace
from ml.models.logistic import LogisticRegression
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from tests.ml.likelihoods import LinearRegression, regression_data


def test_a_run_can_be_repeated_and_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LENGTHS", (2,))
    stages: list[tuple[str, float]] = []
    first = coverage(len(CASES), 1, lambda phase, share: stages.append((phase, share)))
    assert first == coverage(len(CASES), 1)
    assert stages == [("trials", index / 7) for index in range(7)] + [("done", 1.0)]
    assert set(CASES) == {(trial.family, trial.method) for trial in first.outcomes}
    assert {method for _, method in CASES} == {*MAPS, REWEIGHT}
    assert all(trial.truth > 0 and trial.deletions == 2 <= trial.removed for trial in first.outcomes)
    assert {trial.reading for trial in first.outcomes} == {"draws", "weighted draws"}
    assert first.trials == 7 <= first.issued + first.refused == len(first.outcomes)
    assert all(trial.reasons for trial in first.outcomes if not trial.issued)


def test_every_length_is_tried() -> None:
    assert set(LENGTHS) == {1, 10, 50, 200}


def test_no_trials_are_no_run() -> None:
    with pytest.raises(InvalidInput, match="pass at least 1"):
        coverage(0, 0)


def test_the_parts_of_a_sequence_are_disjoint_groups_of_the_rows() -> None:
    data = regression_data(300, 2, torch.Generator().manual_seed(0))
    for kind in module.GROUPS:
        group = module._draw_group(kind, data, 50, torch.Generator().manual_seed(3))
        assert 50 <= len(group) <= 225
        assert len(set(group.tolist())) == len(group)


def exact_samples(parameters: int = 3) -> tuple[LinearRegression, torch.Tensor, SampleSet]:
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(parameters), regression_data(100, parameters, generator)
    mean, covariance = likelihood.posterior(data)
    noise = torch.randn(40, parameters, generator=generator, dtype=torch.float64)
    draws = mean + noise @ torch.linalg.cholesky(covariance).T
    return likelihood, data, SampleSet(draws, torch.arange(2).repeat_interleave(20))


def test_a_map_rebuilt_from_a_few_points_is_the_map() -> None:
    likelihood, data, samples = exact_samples()
    whole = affine_map_matrix_free(likelihood, samples.samples, data, torch.arange(9))
    rebuilt, moved_by = module._move_samples(affine_map_matrix_free, likelihood, samples, data, torch.arange(9))
    assert torch.allclose(rebuilt.samples, whole.samples, rtol=0, atol=1e-6)
    assert not torch.allclose(rebuilt.samples, samples.samples, rtol=0, atol=1e-3)
    assert torch.allclose(moved_by.forwards(samples.samples), rebuilt.samples)


def test_the_composed_map_takes_the_first_draws_to_the_last() -> None:
    likelihood, data, samples = exact_samples()
    parts = torch.arange(12).tensor_split(4)
    deletions = module._Deletions("linear", "matrix-free", "uniform", likelihood, data, parts, 1.0, 0)
    sequence = module._forget(deletions, samples)
    assert sequence.moved is not None
    assert torch.allclose(sequence.moved_by.forwards(samples.samples), sequence.moved.samples, rtol=0, atol=1e-12)
    assert torch.equal(sequence.rows, data[9:])
    assert sequence.forgotten.tolist() == [0, 1, 2]
    assert float(sequence.samples.log_weights.abs().max()) > 0


def test_the_chains_have_the_law_of_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, so that the posterior is far from its Laplace fit: the weighed proposals say how far."""
    monkeypatch.setattr(module, "_DRAWS_PER_CHAIN", 5000)
    likelihood = LogisticRegression(2, prior_std=3.0)
    rows = torch.tensor([[1.0, 0.2, 1], [0.8, -0.5, 1], [-0.3, 1.0, 0], [0.5, 1.5, 1]], dtype=torch.float64)
    potential = Potential(likelihood, rows)
    posterior = KnownPosterior(potential, fit_laplace(potential, rows.new_zeros(2)))
    noise = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theta = posterior.from_white(noise)
    mass = torch.softmax(0.5 * noise.square().sum(1) - posterior.values(theta), 0)
    std = posterior.laplace.hessian.inverse().diagonal().sqrt()
    samples, diagnostics = module._sample_chains(posterior, 0.0, torch.Generator().manual_seed(2))
    bias = (mass @ theta - posterior.laplace.mode) / std
    assert float(bias.abs().max()) > 0.2
    assert float(((samples.mean - mass @ theta) / std).abs().max()) < 0.1
    assert diagnostics.ess > 400


@pytest.mark.slow
@pytest.mark.soak
def test_intervals_hold_the_truth_and_heavy_tails_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LENGTHS", (1, 10))
    report = coverage(84, 0)
    assert report.issued >= 84
    assert report.share >= 0.95
    assert report.above_epsilon <= 0.03 * report.issued
    assert report.refused_k_hat == report.heavy_tailed >= 1
    assert {(stratum.deletions, stratum.reading) for stratum in report.strata} == {
        (length, reading) for length in (1, 10) for reading in ("draws", "weighted draws")
    }


@pytest.mark.soak
def test_intervals_hold_the_truth_after_two_hundred_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LENGTHS", (50, 200))
    report = coverage(len(CASES) * 2, 3)
    assert report.issued >= 10
    assert report.covered >= report.issued - 1
