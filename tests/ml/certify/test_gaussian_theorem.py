from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from ml.certify.gaussian_theorem import GaussianPair, gaussian_theorem
from ml.forgetting.samples import affine_map_matrix_free, shift
from tests.ml.likelihoods import LinearRegression, regression_data, with_moments


def spd(d: int, generator: torch.Generator) -> Tensor:
    root = torch.randn(d, 2 * d + 1, generator=generator, dtype=torch.float64)
    return root @ root.T / (2 * d + 1)


def random_pair(seed: int) -> GaussianPair:
    generator = torch.Generator().manual_seed(seed)
    d = int(torch.randint(1, 9, (), generator=generator))
    n_before = int(torch.randint(2, 400, (), generator=generator))
    return GaussianPair(
        moved_mode=torch.randn(d, generator=generator, dtype=torch.float64) / 10,
        retained_mode=torch.randn(d, generator=generator, dtype=torch.float64) / 10,
        information_before=spd(d, generator),
        information_after=spd(d, generator),
        n_before=n_before,
        n_after=int(torch.randint(1, n_before, (), generator=generator)),
    )


def true_kl(pair: GaussianPair) -> float:
    moved = MultivariateNormal(pair.moved_mode, precision_matrix=pair.n_before * pair.information_before)
    retained = MultivariateNormal(pair.retained_mode, precision_matrix=pair.n_after * pair.information_after)
    return float(kl_divergence(moved, retained))


def paper_formula(pair: GaussianPair) -> float:
    """The last line but one of the paper's proof, as printed, with n' for its n - 1."""
    gap, n, retained = pair.moved_mode - pair.retained_mode, pair.n_before, pair.n_after
    trace = torch.trace(pair.information_after @ torch.linalg.inv(pair.information_before))
    log_ratio = torch.logdet(pair.information_before) - torch.logdet(pair.information_after)
    quadratic = retained * gap @ pair.information_after @ gap
    return 0.5 * float(quadratic + retained / n * trace - len(gap) + (n / retained) ** len(gap) * log_ratio)


def test_the_corrected_theorem_is_the_divergence_of_two_gaussians() -> None:
    for seed in range(300):
        pair = random_pair(seed)
        truth = true_kl(pair)
        assert truth > 0
        assert pair.kl() == pytest.approx(truth, rel=1e-10, abs=1e-10)


def test_the_formula_in_the_paper_is_not_that_divergence() -> None:
    """Off by half of d log(n/n') + (1 - (n/n')^d) log(|J1|/|J2|), which is 0 for hardly any pair."""
    errors = [abs(paper_formula(pair) - true_kl(pair)) / true_kl(pair) for pair in map(random_pair, range(300))]
    assert sum(error > 0.01 for error in errors) > 270
    assert min(errors) > 1e-6


def test_the_formula_in_the_paper_can_be_negative() -> None:
    """Modes and informations equal: what is left is the width, ½d(ρ - 1 - log ρ). The paper's lacks the log."""
    pair = random_pair(0)
    pair = replace(pair, moved_mode=pair.retained_mode, information_after=pair.information_before)
    d, share = len(pair.moved_mode), pair.n_after / pair.n_before
    assert pair.kl() == pytest.approx(0.5 * d * (share - 1 - math.log(share)), rel=1e-10)
    assert paper_formula(pair) == pytest.approx(0.5 * d * (share - 1), rel=1e-10)
    assert paper_formula(pair) < 0 < pair.kl()


def test_the_papers_order_does_not_see_the_width() -> None:
    pair = random_pair(1)
    equal = replace(pair, moved_mode=pair.retained_mode, information_after=pair.information_before)
    assert equal.paper_order() == pytest.approx(0.0, abs=1e-12)
    assert equal.kl() > 1e-3
    full = replace(pair, n_before=pair.n_after)
    assert full.paper_order() == pytest.approx(2 * true_kl(full), rel=1e-10)


@pytest.mark.parametrize("removed", [1, 40])
def test_on_a_conjugate_model_it_is_the_divergence_that_a_shift_leaves(removed: int) -> None:
    generator = torch.Generator().manual_seed(2)
    likelihood, data = LinearRegression(3), regression_data(120, 3, generator)
    mean, covariance = likelihood.posterior(data)
    noise = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    moved = shift(likelihood, with_moments(noise, mean, covariance), data, torch.arange(removed))
    theorem = gaussian_theorem(likelihood, moved, data, data[removed:])
    retained = MultivariateNormal(*likelihood.posterior(data[removed:]))
    truth = kl_divergence(MultivariateNormal(retained.mean, covariance), retained)
    assert theorem is not None
    assert theorem.kl == pytest.approx(float(truth), rel=1e-8)
    assert theorem.paper_order > 0


def test_the_gap_to_a_missed_mode_is_added() -> None:
    """The map of first order stops short of the mode; the gap adds n'(θ1'-θ2)ᵀJ2(θ1'-θ2)/2."""
    generator = torch.Generator().manual_seed(3)
    likelihood, data = LinearRegression(3), regression_data(120, 3, generator)
    mean, covariance = likelihood.posterior(data)
    samples = with_moments(torch.randn(10, 3, generator=generator, dtype=torch.float64), mean, covariance)
    forgotten, retained = data[:, -1].argsort()[:40], data[data[:, -1].argsort()[40:]]
    whole = gaussian_theorem(likelihood, shift(likelihood, samples, data, forgotten), data, retained)
    moved = affine_map_matrix_free(likelihood, samples, data, forgotten)
    short = gaussian_theorem(likelihood, moved, data, retained)
    target, spread = likelihood.posterior(retained)
    gap = moved.mode_after - target
    assert whole is not None
    assert short is not None
    missed = 0.5 * float(gap @ torch.linalg.solve(spread, gap))
    assert missed > 1e-3
    assert short.kl - whole.kl == pytest.approx(missed, rel=1e-8)
    assert short.paper_order - whole.paper_order == pytest.approx(2 * missed, rel=1e-8)


def test_without_a_mode_there_is_no_theorem() -> None:
    likelihood, data = LinearRegression(3), regression_data(20, 3, torch.Generator().manual_seed(4))
    moved = shift(likelihood, torch.eye(3, dtype=torch.float64), data, torch.arange(2))
    lost = replace(moved, mode_after=torch.full_like(moved.mode_after, math.nan))
    assert gaussian_theorem(likelihood, moved, data, data[2:]) is not None
    assert gaussian_theorem(likelihood, lost, data, data[2:]) is None
