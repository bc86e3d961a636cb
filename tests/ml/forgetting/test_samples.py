from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ml.baselines.paper import PaperRecipe, forget_samples
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_rows
from ml.forgetting.samples import MovedSamples, affine_map, affine_map_matrix_free, shift, transport
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from tests.ml.likelihoods import (
    LinearRegression,
    Mixture,
    moment_kl,
    moments,
    posterior_draws,
    regression_data,
    slope,
    with_moments,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, parameters: int, seed: int = 0) -> Tensor:
    return torch.randn(count, parameters, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("forgotten", [[5], list(range(0, 200, 3)), list(range(198)), "extremes"])
def test_on_a_conjugate_model_the_affine_map_equals_retraining(forgotten: list[int] | str) -> None:
    """Samples with exactly the moments of p(θ|S) get exactly those of p(θ|R), for any forgotten rows."""
    likelihood, data = LinearRegression(5), regression_data(200, 5, seeded())
    rows = torch.tensor(forgotten) if isinstance(forgotten, list) else data[:, -1].argsort()[:150]
    samples = with_moments(noise(50, 5), *likelihood.posterior(data))
    moved = affine_map(likelihood, samples, data, rows)
    mean, covariance = likelihood.posterior(retained_rows(data, rows))
    assert torch.allclose(moments(moved.samples)[0], mean, rtol=0, atol=1e-10)
    assert torch.allclose(moments(moved.samples)[1], covariance, rtol=0, atol=1e-10)
    assert torch.allclose(moved.mode_before, likelihood.posterior(data)[0], rtol=0, atol=1e-12)
    assert torch.allclose(moved.mode_after, mean, rtol=0, atol=1e-12)
    widening = torch.logdet(covariance) - torch.logdet(likelihood.posterior(data)[1])
    assert moved.log_det == pytest.approx(float(widening) / 2, abs=1e-10)
    assert 0 < moved.seconds < 60


def test_the_shift_moves_the_mean_alone() -> None:
    likelihood, data = LinearRegression(5), regression_data(200, 5, seeded())
    samples = with_moments(noise(50, 5), *likelihood.posterior(data))
    moved = shift(likelihood, samples, data, torch.arange(120))
    mean, _ = likelihood.posterior(data[120:])
    assert torch.allclose(moments(moved.samples)[0], mean, rtol=0, atol=1e-12)
    assert torch.allclose(moments(moved.samples)[1], moments(samples)[1], rtol=0, atol=1e-12)
    assert torch.allclose(moved.mode_after - moved.mode_before, (moved.samples - samples)[0], rtol=0, atol=1e-12)
    assert moved.log_det == 0


@pytest.mark.parametrize("spread", [1.0, 1e6])
def test_the_transport_matrix_is_the_symmetric_root_that_maps_one_covariance_to_the_other(spread: float) -> None:
    first, second = noise(6, 6, 1), noise(6, 6, 2)
    scales = torch.diag(torch.logspace(0, math.log10(spread) / 2, 6, dtype=torch.float64))
    before = scales @ (first @ first.T + torch.eye(6, dtype=torch.float64)) @ scales
    after = scales @ (second @ second.T + torch.eye(6, dtype=torch.float64)) @ scales
    matrix = transport(before, after)
    assert torch.allclose(matrix, matrix.T, rtol=1e-14, atol=0)
    assert float(torch.linalg.eigvalsh(matrix)[0]) > 0
    whitened = torch.linalg.cholesky(after).T @ matrix @ torch.linalg.inv(torch.linalg.cholesky(before)).T
    assert torch.allclose(whitened @ whitened.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-14 * (10 + spread))


def test_the_transport_matrix_equals_the_published_one() -> None:
    """A = Σ^(-½) (Σ^½ Σ' Σ^½)^½ Σ^(-½), by symmetric roots."""

    def root(matrix: Tensor, power: float) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        result: Tensor = vectors * values**power @ vectors.T
        return result

    covariance, other = (x @ x.T + torch.eye(5, dtype=torch.float64) for x in (noise(5, 5, 1), noise(5, 5, 2)))
    half, inverse_half = root(covariance, 0.5), root(covariance, -0.5)
    expected = inverse_half @ root(half @ other @ half, 0.5) @ inverse_half
    matrix = transport(torch.linalg.inv(covariance), torch.linalg.inv(other))
    assert torch.allclose(matrix, expected, rtol=0, atol=1e-12)


def test_the_transport_matrix_of_equal_covariances_is_the_identity() -> None:
    root = noise(4, 4)
    hessian = root @ root.T + torch.eye(4, dtype=torch.float64)
    assert torch.allclose(transport(hessian, hessian), torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.allclose(transport(hessian, 4 * hessian), 0.5 * torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_matrix_free_map_in_closed_form() -> None:
    """One component: H = P·I and ΔH = k·I, so T(θ) = θ + Σ(θ̄-x)/P + k/(2P)·(θ-θ̄)."""
    likelihood, data = Mixture(components=1), synthetic_mixture(200, seed=0)[0]
    samples = data.mean(0) + 0.1 * noise(30, 2)
    moved = affine_map_matrix_free(likelihood, samples, data, torch.arange(20), tolerance=1e-12)
    precision, centre = 201, samples.mean(0)
    expected = samples + (centre - data[:20]).sum(0) / precision + 10 / precision * (samples - centre)
    assert torch.allclose(moved.samples, expected, rtol=0, atol=1e-12)
    assert torch.allclose(moved.mode_after, moved.samples.mean(0), rtol=0, atol=1e-12)
    assert moved.log_det == pytest.approx(2 * 10 / precision, rel=1e-12)
    few = samples[:2]  # no more than parameters: one solve for each sample, and the trace from them
    moved = affine_map_matrix_free(likelihood, few, data, torch.arange(20), tolerance=1e-12)
    assert moved.log_det == pytest.approx(10 * float((few - few.mean(0)).square().sum(1).mean()), rel=1e-12)


def test_the_matrix_free_map_is_the_first_order_of_the_dense_one() -> None:
    """Forget rows of weight t: the difference of the two maps, in mean and covariance, falls with t²."""
    likelihood, data = LinearRegression(4), regression_data(300, 4, seeded())
    forgotten, weights = torch.arange(60), [1, 2, 4, 8]
    gaps: dict[str, list[float]] = {"mean": [], "covariance": [], "log_det": []}
    moved_by = []
    for weight in weights:
        weighted = torch.cat([data[:60] * (weight / 16) ** 0.5, data[60:]])
        before = likelihood.posterior(weighted)
        samples = with_moments(noise(20, 4), *before)
        dense = affine_map(likelihood, samples, weighted, forgotten)
        free = affine_map_matrix_free(likelihood, samples, weighted, forgotten, tolerance=1e-12)
        (mean, covariance), (other_mean, other_covariance) = moments(dense.samples), moments(free.samples)
        gaps["mean"].append(float((mean - other_mean).norm()))
        gaps["covariance"].append(float((covariance - other_covariance).norm()))
        gaps["log_det"].append(abs(dense.log_det - free.log_det))
        moved_by.append(float((covariance - before[1]).norm()))
    assert 0.9 < slope(weights, moved_by) < 1.1
    assert all(1.8 < slope(weights, gap) < 2.2 for gap in gaps.values())
    assert gaps["covariance"][0] < 0.1 * moved_by[0]


def test_the_matrix_free_map_gets_close_on_the_mixture(paper: Scenario) -> None:
    forgotten = torch.arange(20)
    samples = paper.sets[0][:40]
    dense = affine_map(Mixture(), samples, paper.data, forgotten)
    free = affine_map_matrix_free(Mixture(), samples, paper.data, forgotten)
    moved = (dense.samples - samples).norm()
    assert float((dense.samples - free.samples).norm()) < 0.05 * float(moved)


def test_an_unfinished_solve_is_a_numerical_failure() -> None:
    likelihood, data = LinearRegression(5), regression_data(50, 5, seeded())
    with pytest.raises(NumericalFailure, match="allow more iterations"):
        affine_map_matrix_free(likelihood, noise(3, 5), data, torch.arange(5), max_iterations=1)


@dataclass(frozen=True)
class Scenario:
    """The paper's experiment on samples: 2,000 points; the outer 400 of 500 are forgotten from each of two classes."""

    data: Tensor
    forgotten: Tensor
    sets: list[Tensor]  # sets of 500 samples of p(θ|S)
    fresh: list[Tensor]  # sets of 500 samples of p(θ|R)
    mean: Tensor  # of p(θ|R)
    covariance: Tensor

    def kl(self, sets: list[Tensor]) -> float:
        return sum(moment_kl(samples, self.mean, self.covariance) for samples in sets) / len(sets)


@pytest.fixture(scope="module")
def paper() -> Scenario:
    data, labels = synthetic_mixture(2000, seed=1)
    right, lower = (torch.nonzero(labels == label).flatten() for label in (0, 2))
    outer = data[right, 0].argsort(descending=True)[:400], data[lower, 1].argsort()[:400]
    forgotten = torch.cat([right[outer[0]], lower[outer[1]]])[torch.randperm(800, generator=seeded())]
    start = torch.stack([data[labels == label].mean(0) for label in range(4)]).flatten()
    # With exact standard moments, so that the weighted moments of few draws equal those of many.
    standard = with_moments(noise(2000, 8), torch.zeros(8).double(), torch.eye(8).double())
    before = posterior_draws(Potential(Mixture(), data), start, standard)
    after = posterior_draws(Potential(Mixture(), retained_rows(data, forgotten)), start, standard)
    draws, weights = after
    mean = weights @ draws
    covariance = (weights.unsqueeze(1) * (draws - mean)).T @ (draws - mean)
    return Scenario(data, forgotten, resampled(*before), resampled(*after), mean, covariance)


def resampled(draws: Tensor, weights: Tensor) -> list[Tensor]:
    assert float(1 / weights.square().sum()) > 0.95 * len(draws)
    generator = seeded(9)
    return [draws[torch.multinomial(weights, 500, replacement=True, generator=generator)] for _ in range(8)]


def test_after_forgetting_800_points_samples_are_as_good_as_fresh_ones(paper: Scenario) -> None:
    floor = paper.kl(paper.fresh)
    assert 0.03 < floor < 0.06
    assert paper.kl(paper.sets) > 100
    ours = [affine_map(Mixture(), samples, paper.data, paper.forgotten).samples for samples in paper.sets]
    assert paper.kl(ours) < 1.2 * floor
    shifted = [shift(Mixture(), samples, paper.data, paper.forgotten).samples for samples in paper.sets]
    assert paper.kl(shifted) > 20 * floor


def test_the_paper_s_shift_of_a_single_group_removes_almost_nothing(paper: Scenario) -> None:
    recipe = PaperRecipe(group_size=800, solver="cholesky")
    assert paper.kl([forget_samples(Mixture(), paper.sets[0], paper.data, paper.forgotten, seeded(), recipe)]) > 50


@pytest.mark.slow
def test_the_paper_s_shift_in_small_groups_keeps_the_width(paper: Scenario) -> None:
    recipe = PaperRecipe(solver="cholesky")
    moved = forget_samples(Mixture(), paper.sets[0], paper.data, paper.forgotten, seeded(), recipe)
    assert 1 < paper.kl([moved]) < 3


Map = Callable[[Likelihood, Tensor, Tensor, Tensor], MovedSamples]


@pytest.mark.parametrize("move", [shift, affine_map, affine_map_matrix_free])
@pytest.mark.parametrize(
    ("forgotten", "message"),
    [([], "at least one"), ([-1], "outside"), ([20], "outside"), ([3, 3], "twice"), (list(range(20)), "delete the")],
)
def test_rows_that_cannot_be_forgotten_are_invalid_input(move: Map, forgotten: list[int], message: str) -> None:
    data = regression_data(20, 2, seeded())
    with pytest.raises(InvalidInput, match=message):
        move(LinearRegression(2), noise(3, 2), data, torch.tensor(forgotten, dtype=torch.int64))


@pytest.mark.parametrize("move", [shift, affine_map, affine_map_matrix_free])
def test_arguments_do_not_change(move: Map) -> None:
    samples, data, forgotten = noise(6, 2), regression_data(20, 2, seeded()), torch.arange(4)
    before = [tensor.clone() for tensor in (samples, data, forgotten)]
    moved = move(LinearRegression(2), samples, data, forgotten)
    assert all(torch.equal(*pair) for pair in zip(before, (samples, data, forgotten), strict=True))
    assert not torch.equal(moved.samples, samples)
