from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.certify.predictive import (
    ClassifierFamily,
    WeightedDraws,
    class_log_probabilities,
    even_draws,
    log_predictive,
    log_predictives,
    relabelled_log_likelihoods,
    weighted_draws,
)
from ml.errors import NumericalFailure
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from tests.ml.networks import labelled_rows

NETWORK = MLP(3, hidden=4, classes=3)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_predictive_is_the_weighted_mean_of_the_densities() -> None:
    rows, thetas = labelled_rows(NETWORK, 2000), normal(5, NETWORK.parameter_count)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64)
    densities = torch.stack([NETWORK.outputs(theta, rows).softmax(1) for theta in thetas])
    expected = (weights.view(-1, 1, 1) * densities).sum(0).log()

    def log_density(theta: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
        return class_log_probabilities(NETWORK, theta, chunk)

    draws = WeightedDraws(thetas, weights)
    assert torch.allclose(log_predictive(log_density, draws, rows), expected, rtol=1e-10)
    halves = weights * torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    assert torch.allclose(torch.logaddexp(*log_predictives(log_density, thetas, halves, rows)), expected, rtol=1e-10)
    assert torch.allclose(log_predictive(log_density, draws, rows.float()), expected, atol=1e-5)


def test_class_probabilities_are_those_of_the_rows_with_every_label() -> None:
    rows, theta = labelled_rows(NETWORK, 20), normal(NETWORK.parameter_count)
    expected = class_log_probabilities(NETWORK, theta, rows)
    assert torch.allclose(relabelled_log_likelihoods(NETWORK, 3, theta, rows), expected)
    assert torch.allclose(expected.exp().sum(1), torch.ones(20, dtype=torch.float64))
    softmax = SoftmaxRegression(3, classes=3, prior_std=1.0)
    logits = rows[:, :-1] @ normal(9).view(3, 3).T
    assert torch.allclose(class_log_probabilities(softmax, normal(9), rows), logits.log_softmax(1))


def test_families_with_labels_classify_and_others_do_not() -> None:
    assert isinstance(NETWORK, ClassifierFamily)
    assert isinstance(LogisticRegression(2, prior_std=1.0), ClassifierFamily)
    assert not isinstance(LinearRegression(2, noise_std=1.0, prior_std=1.0), ClassifierFamily)


def test_a_reweighted_set_keeps_its_draws_and_changes_their_weights() -> None:
    before = SampleSet(normal(300, 2), torch.arange(300) % 2)
    after = replace(before, log_weights=normal(300, seed=1))
    old, new = (weighted_draws(samples, 64, seed=0, reading="weighted draws") for samples in (before, after))
    assert torch.equal(old.thetas, new.thetas)
    assert (len(new.thetas), float(new.weights.sum())) == (64, pytest.approx(1))
    assert torch.allclose(old.weights, torch.full((64,), 1 / 64, dtype=torch.float64))
    assert float(new.weights[0] / new.weights[-1]) == pytest.approx(
        float((after.log_weights[0] - after.log_weights[-1]).exp())
    )
    as_they_are = weighted_draws(after, 64, seed=0, reading="draws")
    assert torch.equal(as_they_are.thetas, old.thetas)
    assert torch.equal(as_they_are.weights, old.weights)


def test_few_stored_draws_are_all_read() -> None:
    few = SampleSet(normal(10, 2), torch.zeros(10, dtype=torch.int64), log_weights=normal(10, seed=1))
    draws = weighted_draws(few, 64, seed=0, reading="weighted draws")
    assert torch.equal(draws.thetas, few.samples)
    assert torch.allclose(draws.weights, few.weights)


def test_even_draws_of_weighted_samples_are_picked_by_weight() -> None:
    log_weights = torch.tensor([0.75, 0.25, 1e-9], dtype=torch.float64).log()
    samples = SampleSet(normal(3, 2), torch.zeros(3, dtype=torch.int64), log_weights=log_weights)
    picked = even_draws(samples, 8, seed=0, reading="weighted draws")
    assert torch.equal(picked, samples.samples[[0, 0, 0, 0, 0, 0, 1, 1]])


def test_gaussians_share_their_noise() -> None:
    zeros, ones = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    narrow, wide = (
        even_draws(MeanFieldGaussian(zeros, scale * ones), 7, seed=5, reading="draws") for scale in (1.0, 2.0)
    )
    assert torch.equal(2 * narrow, wide)


def test_a_prediction_that_is_not_a_number_is_a_failure() -> None:
    rows, thetas = labelled_rows(NETWORK, 3), normal(2, NETWORK.parameter_count).log()
    with pytest.raises(NumericalFailure, match="NaN"):
        log_predictive(NETWORK.log_likelihood, WeightedDraws.even(thetas), rows)
