from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.inference.stein import (
    Check,
    CheckedDraws,
    check_directions,
    check_joint_mean_gradient,
    check_mean_gradient,
    check_virial,
    check_width,
    undetectable_divergence,
)


def normals(seed: int, parameters: int, draws: int = 500, chains: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(chains, draws, parameters, generator=generator, dtype=torch.float64)


def judged(draws: Tensor, hessian: Tensor | None = None, weights: Tensor | None = None) -> CheckedDraws:
    """Return the draws with the gradients of U = θᵀHθ/2; H = I if it is not given."""
    even = torch.ones(draws.shape[:2], dtype=torch.float64)
    return CheckedDraws(draws, draws if hessian is None else draws @ hessian, even if weights is None else weights)


def equicorrelated(parameters: int, correlation: float) -> Tensor:
    return (1 - correlation) * torch.eye(parameters).double() + correlation


def every_check(checked: CheckedDraws) -> list[Check | None]:
    checks = (check_mean_gradient, check_joint_mean_gradient, check_virial, check_width, check_directions)
    return [check(checked) for check in checks]


def test_true_draws_pass_every_check() -> None:
    """Thirty sets of draws of a correlated Gaussian: the checks fail for 0.5 % of all sets."""
    covariance = equicorrelated(5, 0.7)
    root, hessian = torch.linalg.cholesky(covariance), torch.linalg.inv(covariance)
    for seed in range(30):
        checks = every_check(judged(normals(seed, 5) @ root.T, hessian))
        assert all(check is not None and check.passed for check in checks)


def test_deviations_are_standard_errors() -> None:
    """A shift of 0.1 in N(0, 1) is 0.1 √2000 = 4.5 errors; a width of 1.1 is 0.21/(1.21 √(2/2000)) = 5.5 of them."""
    draws = normals(1, 3)
    draws = (draws - draws.mean((0, 1))) / draws.std((0, 1))
    shifted = draws + torch.tensor([0.0, 0.1, 0.0])
    mean = check_mean_gradient(judged(shifted))
    assert mean.parameter == 1
    assert mean.deviation == pytest.approx(0.1 * math.sqrt(2_000), rel=0.1)
    wide = check_virial(judged(draws * torch.tensor([1.0, 1.0, 1.1])))
    assert wide.parameter == 2
    assert wide.value == pytest.approx(1.21, abs=0.005)
    assert 5 < wide.deviation < 7.5


def test_limits_grow_with_the_parameters_and_fall_with_the_draws() -> None:
    few, many = check_mean_gradient(judged(normals(2, 2))), check_mean_gradient(judged(normals(2, 50)))
    assert 3.3 < few.limit < 3.8 < many.limit < 4.6
    assert check_mean_gradient(judged(normals(2, 2, draws=60))).limit > few.limit


def test_many_small_shifts_are_seen_together() -> None:
    """0.06 in each of 50 parameters: 2.7 standard errors each, below the limit of 50 tests, but T² is 8 times p."""
    draws = normals(3, 50)
    draws = (draws - draws.mean((0, 1))) / draws.std((0, 1)) + 0.06
    checked = judged(draws)
    joint = check_joint_mean_gradient(checked)
    assert check_mean_gradient(checked).passed
    assert joint is not None
    assert not joint.passed
    assert joint.deviation == pytest.approx(0.06**2 * 2_000, rel=0.3)


def test_a_shift_along_a_narrow_direction_is_seen_jointly() -> None:
    """0.1 √2 along the difference of two parameters of correlation 0.99, which is √2 standard deviations of it."""
    covariance = equicorrelated(2, 0.99)
    root, hessian = torch.linalg.cholesky(covariance), torch.linalg.inv(covariance)
    draws = normals(4, 2) @ root.T + torch.tensor([0.1, -0.1])
    joint = check_joint_mean_gradient(judged(draws, hessian))
    assert joint is not None
    assert joint.deviation == pytest.approx(2 * 2_000 / 2, rel=0.15)


def test_the_width_is_that_of_all_parameters() -> None:
    width = check_width(judged(1.08 * normals(5, 10)))
    assert math.sqrt(width.value) == pytest.approx(1.08, abs=0.012)
    assert not width.passed
    assert check_width(judged(normals(5, 10))).passed


def test_draws_without_the_correlations_of_the_posterior_fail_along_directions_only() -> None:
    """Mean-field draws: σ_j² = 1/H_jj. Every virial is 1; along (1, 1)/√2 and (1, -1)/√2 they are 1 ± ρ."""
    hessian = equicorrelated(2, 0.5)
    checked = judged(normals(6, 2), hessian)
    assert check_virial(checked).passed
    assert check_width(checked).passed
    directions = check_directions(checked)
    assert directions is not None
    assert not directions.passed
    assert min(abs(directions.value - 0.5), abs(directions.value - 1.5)) < 0.1


def test_one_direction_of_fifty_three_times_too_wide() -> None:
    """A direction of all parameters: each virial is 1 + 8/50, the one along it 9."""
    direction = torch.ones(50).double() / math.sqrt(50)
    white = normals(7, 50)
    directions = check_directions(judged(white + 2 * (white @ direction).unsqueeze(2) * direction))
    assert directions is not None
    assert directions.value == pytest.approx(9.0, rel=0.15)
    assert not directions.passed


def test_units_do_not_matter() -> None:
    scale = torch.tensor([1e-6, 1.0, 1e9]).double()
    draws = normals(8, 3)
    plain = judged(draws)
    scaled = CheckedDraws(draws * scale, draws / scale, plain.weights)
    for expected, check in zip(every_check(plain), every_check(scaled), strict=True):
        assert check is not None
        assert expected is not None
        assert check.deviation == pytest.approx(expected.deviation, rel=1e-6)
    assert undetectable_divergence(scaled) == pytest.approx(undetectable_divergence(plain), rel=1e-6)


def test_weighted_draws_are_judged_by_their_weights() -> None:
    """Draws of N(0.3, 1.2²) with the weights of N(0, 1) pass; without the weights they do not."""
    draws = 0.3 + 1.2 * normals(9, 2)
    weights = (((draws - 0.3) / 1.2).square() - draws.square()).sum(2).div(2).exp()
    weighted = judged(draws, weights=weights / weights.mean())
    assert all(check is not None and check.passed for check in every_check(weighted))
    assert not check_mean_gradient(judged(draws)).passed
    assert not check_virial(judged(draws)).passed
    assert weighted.effective < 1_700
    shifted = judged(draws + 0.2, weights=weighted.weights)
    assert not check_mean_gradient(shifted).passed


def test_too_few_draws_are_judged_by_parameter_only() -> None:
    checked = judged(normals(10, 60, draws=30))
    assert check_joint_mean_gradient(checked) is None
    assert check_directions(checked) is None
    assert check_mean_gradient(checked).passed
    assert undetectable_divergence(checked) > 0.3


def test_a_single_chain_is_split_in_its_middle() -> None:
    first, second = judged(normals(11, 2, chains=1)).halves()
    assert first.draws.shape == second.draws.shape == (1, 250, 2)
    assert not torch.equal(first.draws, second.draws)


@pytest.mark.parametrize("parameters", [2, 10])
def test_what_cannot_be_excluded_falls_as_one_over_the_draws(parameters: int) -> None:
    """With p + p(p+1)/2 deviations of the size of their errors, λ_up/2N."""
    values = [undetectable_divergence(judged(normals(12, parameters, draws=draws))) for draws in (250, 1_000, 4_000)]
    assert values[0] > values[1] > values[2] > 0
    assert values[0] / values[2] == pytest.approx(16, rel=0.6)


def test_copies_of_a_point_exclude_nothing() -> None:
    assert undetectable_divergence(judged(torch.ones(4, 100, 3).double())) == math.inf


@pytest.mark.parametrize("shift", [0.03, 0.1])
def test_the_divergence_of_displaced_and_wider_draws_is_not_excluded(shift: float) -> None:
    """Draws of N(δ, 1.03² I) have a known divergence from N(0, I): it is covered in at least 95 % of 200 sets."""
    parameters, width = 3, 1.03
    divergence = parameters * (width**2 - 1 - 2 * math.log(width)) / 2 + shift**2 / 2
    displaced = torch.tensor([shift, 0.0, 0.0])
    covered = [
        undetectable_divergence(judged(width * normals(seed, parameters, draws=125) + displaced)) >= divergence
        for seed in range(200)
    ]
    assert sum(covered) / 200 >= 0.93  # 0.95, within 1.3 standard errors
