"""The truth is the optimum of the exact ELBO: with two classes its expectations are one-dimensional integrals."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev

from ml.certify.elbo_distance import estimate_elbo_distance, state_elbo_distance
from ml.certify.kantorovich import certify_expansion
from ml.inference.variational import train
from ml.models.family import Family
from ml.models.linear import LinearRegression
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.models.test_softmax import random_rows

FAMILY = SoftmaxRegression(3, 2, 1.0, draws=4, seed=2)
ROWS = random_rows(60, 3, 2)


def optimum(family: Family, data: Tensor) -> MeanFieldGaussian:
    return train(family, data, family.initial(data, 0)).posterior


@functools.cache
def exact_optimum() -> MeanFieldGaussian:
    """Minimise Σ E log(1+e^(-t)) + KL, where t, the gap between the two logits, is Gaussian."""
    features, sign = ROWS[:, :-1], 2 * ROWS[:, -1] - 1
    nodes = torch.arange(-8, 8.01, 0.25, dtype=torch.float64)
    weights = torch.softmax(-0.5 * nodes.square(), 0)

    def negative_elbo(flat: Tensor) -> Tensor:
        mean, std = flat.view(2, 2, -1)
        centre, width = sign * (features @ (mean[1] - mean[0])), (features.square() @ std.square().sum(0)).sqrt()
        losses = torch.nn.functional.softplus(-centre.unsqueeze(1) - width.unsqueeze(1) * nodes)
        scaled = flat / FAMILY.prior_std
        return (losses @ weights).sum() + 0.5 * scaled.dot(scaled) - std.log().sum()

    posterior = optimum(replace(FAMILY, draws=64), ROWS)
    for _ in range(4):
        flat = posterior.flat()
        posterior = posterior.with_flat(
            flat - torch.linalg.solve(jacrev(grad(negative_elbo))(flat), grad(negative_elbo)(flat))
        )
    assert float(grad(negative_elbo)(posterior.flat()).norm()) < 1e-9
    return posterior


@pytest.mark.parametrize(("draws", "lower", "upper"), [(4, 5e-2, 0.2), (32, 1e-4, 5e-4), (128, 1e-4, 3e-4)])
def test_the_estimate_is_close_to_the_distance(draws: int, lower: float, upper: float) -> None:
    family = replace(FAMILY, draws=draws)
    reference = optimum(family, ROWS)
    truth = reference.kl(exact_optimum())
    estimate = estimate_elbo_distance(family, family.expand(reference, ROWS), ROWS)
    assert lower < truth < upper
    assert truth / 3 < estimate < 3 * truth


def test_the_estimate_speaks_of_the_reference_and_not_of_the_posterior_at_hand() -> None:
    family = replace(FAMILY, draws=16)
    reference = optimum(family, ROWS)
    off = MeanFieldGaussian(reference.mean + 0.1 * reference.std, reference.std)
    estimates = [estimate_elbo_distance(family, family.expand(at, ROWS), ROWS) for at in (reference, off)]
    assert estimates[1] == pytest.approx(estimates[0], rel=0.2)


def test_a_step_past_zero_leaves_half_of_a_width() -> None:
    """A single pair of draws on few rows fits its own noise: the distance is finite and large."""
    family, data = SoftmaxRegression(6, 3, 10.0, draws=2, seed=0), random_rows(20, 6, 3)
    assert 1 < estimate_elbo_distance(family, family.expand(optimum(family, data), data), data) < float("inf")


def test_the_certificate_states_the_distance_in_words() -> None:
    expansion = FAMILY.expand(optimum(FAMILY, ROWS), ROWS)
    certificate = certify_expansion(FAMILY, expansion, ROWS)
    stated = state_elbo_distance(certificate, FAMILY, expansion, ROWS)
    assert stated.elbo_distance == estimate_elbo_distance(FAMILY, expansion, ROWS)
    sentence, *others = stated.not_proved
    assert tuple(others) == certificate.not_proved
    for words in (
        "4 frozen noise draws (seed 2)",
        f"estimated to be {stated.elbo_distance:.1e} nats",
        "16 other draws",
    ):
        assert words in sentence
    assert (stated.epsilon, stated.reference) == (certificate.epsilon, certificate.reference)


def test_a_distance_that_cannot_be_solved_for_is_not_stated() -> None:
    expansion = FAMILY.expand(optimum(FAMILY, ROWS), ROWS)
    certificate = certify_expansion(FAMILY, expansion, ROWS)
    assert state_elbo_distance(certificate, FAMILY, replace(expansion, hessian=-expansion.hessian), ROWS) is certificate


def test_an_exact_energy_is_at_no_distance_and_needs_no_sentence() -> None:
    family = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
    data = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expansion = family.expand(family.optimum(data), data)
    certificate = certify_expansion(family, expansion, data)
    assert state_elbo_distance(certificate, family, expansion, data) == replace(certificate, elbo_distance=0.0)
