"""Network energies against explicit sums over rows, derivatives and dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models import network_energy
from ml.models.network_energy import NetworkEnergy, can_be_read_whole, default_reads, frozen_draws, frozen_energy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, dense_gauss_newton, labelled_rows, random_theta

ROWS = torch.arange(23)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior(seed: int = 0) -> MeanFieldGaussian:
    spread = torch.rand(TINY.parameter_count, generator=seeded(seed), dtype=torch.float64)
    return MeanFieldGaussian(random_theta(TINY, seed), 0.1 + spread)


def energy(draws: int = 4, n: int = 23) -> NetworkEnergy:
    return NetworkEnergy(TINY, labelled_rows(TINY, n), frozen_draws(posterior(), draws, seed=3))


def by_hand(e: NetworkEnergy, drift: Tensor, rows: list[int]) -> Tensor:
    """Return Σ_i -log softmax(outputs)_y, with draw i mod M for row i."""
    total = torch.zeros((), dtype=torch.float64)
    for i in rows:
        w1, b1, w2, b2 = torch.split(e.draws[i % len(e.draws)] + drift, [12, 4, 12, 3])
        x, y = e.data[i, :-1], int(e.data[i, -1])
        logits = w2.reshape(3, 4) @ torch.relu(w1.reshape(4, 3) @ x + b1) + b2
        total = total + torch.logsumexp(logits, 0) - logits[y]
    return total


def matrix(e: NetworkEnergy, rows: Tensor, weight: float) -> Tensor:
    product = e.curvature(rows, weight)
    return torch.stack([product(column) for column in torch.eye(TINY.parameter_count, dtype=torch.float64)])


def prior_precision() -> Tensor:
    return torch.eye(TINY.parameter_count, dtype=torch.float64) / TINY.prior_std**2


@pytest.mark.parametrize("draws", [2, 4, 32])
def test_each_row_uses_the_draw_of_its_position(draws: int) -> None:
    e, drift = energy(draws), 0.1 * random_theta(TINY, 5)
    assert e.misfit(drift, ROWS) == pytest.approx(float(by_hand(e, drift, list(range(23)))), rel=1e-12)
    some = torch.tensor([20, 3, 7])
    assert e.misfit(drift, some) == pytest.approx(float(by_hand(e, drift, [20, 3, 7])), rel=1e-12)


def test_the_gradient_is_the_derivative_of_the_misfit() -> None:
    e, drift = energy(), 0.1 * random_theta(TINY, 5)
    at = drift.clone().requires_grad_()
    expected = torch.autograd.grad(by_hand(e, at, list(range(23))), at)[0]
    gradient = e.misfit_gradient(drift, ROWS)
    assert torch.allclose(gradient, expected, rtol=1e-11, atol=1e-11)
    direction, step = random_theta(TINY, 6), 1e-6
    slope = (e.misfit(drift + step * direction, ROWS) - e.misfit(drift - step * direction, ROWS)) / (2 * step)
    assert float(gradient.dot(direction)) == pytest.approx(slope, rel=1e-6)


def test_removing_rows_removes_their_terms_only(monkeypatch: pytest.MonkeyPatch) -> None:
    e, drift = energy(), 0.1 * random_theta(TINY, 5)
    removed, retained = torch.tensor([2, 9, 11]), torch.tensor([i for i in range(23) if i not in (2, 9, 11)])
    assert e.misfit(drift, removed) + e.misfit(drift, retained) == pytest.approx(e.misfit(drift, ROWS), rel=1e-13)
    parts = e.misfit_gradient(drift, removed) + e.misfit_gradient(drift, retained)
    whole = e.misfit_gradient(drift, ROWS)
    assert torch.allclose(parts, whole, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(network_energy, "_ROWS_AT_ONCE", 2)
    assert torch.allclose(e.misfit_gradient(drift, ROWS), whole, rtol=1e-12, atol=1e-12)


def test_the_prior_is_that_of_the_network_and_its_gradient_the_derivative() -> None:
    e, drift = energy(), 0.1 * random_theta(TINY, 5)
    origin = torch.zeros_like(drift)
    expected = -torch.stack([TINY.log_prior(draw + drift) - TINY.log_prior(draw) for draw in e.draws]).mean()
    assert e.prior_energy(drift) - e.prior_energy(origin) == pytest.approx(float(expected), rel=1e-11)
    at = drift.clone().requires_grad_()
    mean_log_prior = torch.stack([TINY.log_prior(draw + at) for draw in e.draws]).mean()
    assert torch.allclose(e.prior_gradient(drift), torch.autograd.grad(-mean_log_prior, at)[0], rtol=1e-11, atol=1e-12)


def test_the_curvature_of_one_draw_is_the_dense_matrix() -> None:
    e = NetworkEnergy(TINY, labelled_rows(TINY, 23), random_theta(TINY).unsqueeze(0))
    curvature, dense = matrix(e, ROWS, 2.5), dense_gauss_newton(TINY, e.draws[0], e.data)
    assert torch.allclose(curvature, 2.5 * dense + prior_precision(), rtol=1e-11, atol=1e-11)
    assert torch.allclose(curvature, curvature.T, rtol=0, atol=1e-11)
    assert float(torch.linalg.eigvalsh(curvature).min()) >= TINY.prior_std**-2 * (1 - 1e-9)


@pytest.mark.parametrize("at_once", [1, 3, 4, 10, 100])
def test_the_curvature_splits_its_rows_among_draws_and_their_mirror_images(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_energy, "_ROWS_AT_ONCE", at_once)
    e, draws = energy(draws=4), (0, 2, 1, 3) * 6
    parts = [dense_gauss_newton(TINY, e.draws[draws[row]], e.data[row : row + 1]) for row in range(len(ROWS))]
    expected = torch.stack(parts).sum(0) + prior_precision()
    assert torch.allclose(matrix(e, ROWS, 1.0), expected, rtol=1e-11, atol=1e-11)


def test_the_fisher_diagonal_is_unbiased() -> None:
    """Check the mean over many generators: each coordinate within five standard errors, and their sum."""
    e, repeats = energy(draws=2), 400
    estimates = torch.stack([e.fisher_diagonal(ROWS, seeded(seed)) for seed in range(repeats)])
    diagonals = [dense_gauss_newton(TINY, e.draws[i % 2], e.data[i : i + 1]).diagonal() for i in range(23)]
    exact, error = torch.stack(diagonals).sum(0), estimates.std(0) / math.sqrt(repeats)
    assert bool((estimates >= 0).all())
    assert bool(((estimates.mean(0) - exact).abs() <= 5 * error + 1e-12).all())
    assert float(estimates.mean(0).sum()) == pytest.approx(float(exact.sum()), rel=0.05)


def test_frozen_draws_are_mirror_images_decided_by_the_seed() -> None:
    q = posterior()
    draws = frozen_draws(q, 6, seed=1)
    assert draws.shape == (6, TINY.parameter_count)
    assert torch.allclose(draws[:3] + draws[3:], (2 * q.mean).expand(3, -1), rtol=1e-14, atol=1e-14)
    second_moment = ((draws - q.mean) / q.std).square().mean(0)
    assert torch.allclose(second_moment, torch.ones_like(q.mean), rtol=1e-10, atol=0)
    assert torch.equal(draws, frozen_draws(q, 6, seed=1))
    assert not torch.allclose(draws, frozen_draws(q, 6, seed=2))
    with pytest.raises(InvalidInput, match="even number"):
        frozen_draws(q, 5, seed=1)


def test_single_precision_data_gives_sums_in_double() -> None:
    e, drift = energy(), 0.1 * random_theta(TINY, 5)
    single = NetworkEnergy(TINY, e.data.float(), e.draws)
    assert single.misfit(drift, ROWS) == pytest.approx(e.misfit(drift, ROWS), rel=1e-5)
    for result, expected in (
        (single.misfit_gradient(drift, ROWS), e.misfit_gradient(drift, ROWS)),
        (single.curvature(ROWS, 2.0)(drift), e.curvature(ROWS, 2.0)(drift)),
        (single.fisher_diagonal(ROWS, seeded()), e.fisher_diagonal(ROWS, seeded())),
    ):
        assert result.dtype == torch.float64
        assert torch.allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reads", [1, 2, 4])
def test_a_row_is_read_by_several_draws_and_their_mean_counts(reads: int) -> None:
    data, draws, drift = labelled_rows(TINY, 23), frozen_draws(posterior(), 4, seed=3), 0.1 * random_theta(TINY, 5)
    several = NetworkEnergy(TINY, data, draws, reads)
    expected, slope = 0.0, torch.zeros_like(drift)
    for row in range(23):
        for draw in range(row % (4 // reads), 4, 4 // reads):
            at = drift.clone().requires_grad_()
            misfit = -TINY.log_likelihood(draws[draw] + at, data[row : row + 1]).sum() / reads
            expected += float(misfit.detach())
            slope += torch.autograd.grad(misfit, at)[0]
    assert several.misfit(drift, ROWS) == pytest.approx(expected, rel=1e-12)
    assert torch.allclose(several.misfit_gradient(drift, ROWS), slope, rtol=1e-11, atol=1e-11)


def test_minibatches_of_rows_read_by_several_draws_are_unbiased() -> None:
    several = NetworkEnergy(TINY, labelled_rows(TINY, 24), frozen_draws(posterior(), 4, seed=3), reads=2)
    drift, generator = 0.1 * random_theta(TINY, 5), seeded()
    estimates = torch.stack([several.estimate(drift, 16, generator) for _ in range(2_000)])
    exact = several.misfit(drift, torch.arange(24)) + several.prior_energy(drift)
    assert float(estimates.mean()) == pytest.approx(exact, abs=4 * float(estimates.std()) / math.sqrt(2_000))


def test_small_data_sets_are_read_by_as_many_draws_as_they_need() -> None:
    assert [default_reads(rows) for rows in (64, 512, 1_000, 2_000, 16_384, 60_000)] == [32, 32, 16, 8, 1, 1]
    assert frozen_energy(TINY, posterior(), labelled_rows(TINY, 600)).reads == 16
    assert frozen_energy(TINY, posterior(), labelled_rows(TINY, 600), draws=4).reads == 4
    assert can_be_read_whole(TINY, 16_384)
    assert not can_be_read_whole(TINY, 16_385)
    with pytest.raises(InvalidInput, match="reads is 3 for 4 draws"):
        NetworkEnergy(TINY, labelled_rows(TINY, 5), frozen_draws(posterior(), 4, seed=3), reads=3)
