from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ml.inference import diagnostics
from ml.inference.diagnostics import diagnose, evenly_spaced_draws


def independent_draws(seed: int = 0, chains: int = 4, length: int = 500, parameters: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(chains, length, parameters, generator=generator, dtype=torch.float64)


def test_independent_draws_of_the_posterior_pass() -> None:
    """U = |θ|²/2 has the gradient θ."""
    draws = independent_draws()
    result = diagnose(draws, draws)
    assert result.ok
    assert result.warning is None
    assert 1 <= result.r_hat < 1.006
    assert result.ess == pytest.approx(2000, rel=0.2)
    assert result.width == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("factor", [0.5, 1.3, 5.0])
def test_the_width_is_the_factor_of_draws_that_are_too_wide_or_too_narrow(factor: float) -> None:
    """The chains mix perfectly, so only the gradients of the potential can show it."""
    draws = factor * independent_draws(1)
    result = diagnose(draws, draws)
    assert result.width == pytest.approx(factor, rel=0.04)
    assert result.r_hat < 1.01
    assert not result.ok
    assert result.warning is not None
    assert result.warning.startswith(f"the draws spread {result.width:.2f} times as wide as the posterior")
    assert ("lower the step size" in result.warning) == (factor > 1)
    assert ("raise iterations" in result.warning) == (factor < 1)


def quadratic(draws: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the gradients of the Gaussian potential."""
    gradients: Tensor = torch.linalg.solve(covariance, (draws - mean).flatten(0, 1).T).T.view_as(draws)
    return gradients


def regression(parameters: int, seed: int, rows: int = 200) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the posterior of a linear regression with unit noise and a N(0, 3²) prior."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, parameters, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 0] + 0.3 * x[:, 1]
    y = x.sum(1) + torch.randn(rows, generator=generator, dtype=torch.float64)
    covariance = torch.linalg.inv(x.T @ x + torch.eye(parameters) / 9)
    return covariance @ (x.T @ y), covariance


MEAN, COVARIANCE = regression(10, seed=0)
ROOT = torch.linalg.cholesky(COVARIANCE)


def three_deviations_off(white: Tensor) -> Tensor:
    return MEAN + white @ ROOT.T + 3 * ROOT[:, 4]


def posterior_of_other_rows(white: Tensor) -> Tensor:
    mean, covariance = regression(10, seed=1)
    return mean + white @ torch.linalg.cholesky(covariance).T


def one_direction_three_times_too_wide(white: Tensor) -> Tensor:
    direction = torch.ones(10, dtype=torch.float64) / math.sqrt(10)
    return MEAN + (white + 2 * (white @ direction).unsqueeze(2) * direction) @ ROOT.T


def mean_field(white: Tensor) -> Tensor:
    return MEAN + white * torch.linalg.inv(COVARIANCE).diagonal().rsqrt()


def half_too_narrow(white: Tensor) -> Tensor:
    return MEAN + white * torch.where(torch.arange(10) < 5, 1.0, 0.5) @ ROOT.T


def prior(white: Tensor) -> Tensor:
    return 3 * white


def copies_of_one_point(white: Tensor) -> Tensor:
    return MEAN.expand_as(white).clone()


def chains_that_never_mixed(white: Tensor) -> Tensor:
    return MEAN + (0.3 * white + white[:, :1]) @ ROOT.T


def eight_percent_too_wide(white: Tensor) -> Tensor:
    return MEAN + 1.08 * white @ ROOT.T


@pytest.mark.parametrize(
    "sabotage",
    [
        three_deviations_off,
        posterior_of_other_rows,
        one_direction_three_times_too_wide,
        mean_field,
        half_too_narrow,
        prior,
        copies_of_one_point,
        chains_that_never_mixed,
        eight_percent_too_wide,
    ],
)
def test_wrong_draws_are_refused(sabotage: Callable[[Tensor], Tensor]) -> None:
    """Of a Gaussian posterior with ten parameters, two of them strongly correlated. True draws pass."""
    white = independent_draws(20, parameters=10)
    wrong, true = sabotage(white), MEAN + white @ ROOT.T
    assert diagnose(true, quadratic(true, MEAN, COVARIANCE)).ok
    assert not diagnose(wrong, quadratic(wrong, MEAN, COVARIANCE)).ok


def test_laplace_draws_of_a_skewed_posterior_are_refused() -> None:
    """U = e^θ - 5θ, the log of a Gamma variable of shape 5: its mode is log 5, its curvature there 5."""
    white = independent_draws(21, parameters=2)
    laplace = math.log(5) + white / math.sqrt(5)
    assert not diagnose(laplace, laplace.exp() - 5).ok
    gamma = torch.distributions.Gamma(torch.tensor(5.0).double(), torch.tensor(1.0).double())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        true = gamma.sample((4, 500, 2)).log()
    assert diagnose(true, true.exp() - 5).ok


def test_weighted_draws_are_judged_by_their_weights() -> None:
    """Draws of the Laplace approximation of that posterior, with weights, pass."""
    white = independent_draws(22, parameters=2)
    draws = math.log(5) + white / math.sqrt(5)
    log_weights = (white.square() / 2 - draws.exp() + 5 * draws).sum(2)
    assert not diagnose(draws, draws.exp() - 5).ok
    weighted = diagnose(draws, draws.exp() - 5, log_weights)
    assert weighted.ok
    assert weighted.undetectable > diagnose(white, white).undetectable
    assert diagnose(draws, draws.exp() - 5, log_weights + 7).virial == pytest.approx(weighted.virial)


def test_the_parameter_that_deviates_most_is_named() -> None:
    draws = independent_draws(23, parameters=12)
    draws[..., 7] += 0.3
    result = diagnose(draws, draws)
    assert result.worst_parameter == 7
    assert result.mean_gradient == pytest.approx(0.3 * math.sqrt(2_000), abs=3)
    assert result.warning is not None
    assert result.warning.startswith(
        f"parameter 7 (from 0, of 12): the mean gradient is {result.mean_gradient:.1f} standard errors from 0 "
        f"(limit {result.mean_gradient_limit:.1f}): these are not draws of the posterior given these rows. Check that"
    )


def test_a_width_that_is_wrong_in_one_parameter_is_named() -> None:
    draws = independent_draws(24, parameters=50)
    draws[..., 31] *= 1.5
    result = diagnose(draws, draws)
    assert result.worst_parameter == 31
    assert result.virial > result.virial_limit
    assert result.warning is not None
    assert "parameter 31 (from 0, of 50): the draws are 1.5" in result.warning


def test_antithetic_draws_are_worth_at_most_their_number() -> None:
    """θ_t+1 = -0.9 θ_t + noise: the mean is known far better than by independent draws."""
    noise, draws = independent_draws(25), independent_draws(26)
    for t in range(1, 500):
        draws[:, t] = -0.9 * draws[:, t - 1] + math.sqrt(1 - 0.81) * noise[:, t]
    assert diagnose(draws, draws).ess <= 2_000


def test_the_width_is_measured_from_the_draws_own_mean() -> None:
    draws = independent_draws(2) + 100.0
    assert diagnose(draws, draws - 100.0).width == pytest.approx(1.0, abs=0.04)


def test_some_draws_are_enough_for_the_width() -> None:
    draws = independent_draws(3)
    result = diagnose(draws, evenly_spaced_draws(draws, 100))
    assert result.ok
    assert result.width == pytest.approx(1.0, abs=0.08)


def test_gradients_that_point_outwards_give_width_zero() -> None:
    draws = independent_draws(4)
    result = diagnose(draws, -draws)
    assert result.width == 0.0
    assert not result.ok


def test_a_chain_apart_from_the_others_gives_a_warning() -> None:
    draws = independent_draws(5)
    draws[2, :, 1] += 1.0
    result = diagnose(draws, draws)
    assert result.r_hat > 1.1
    assert result.warning is not None
    assert "the chains disagree" in result.warning
    assert "burn_in" in result.warning


def test_correlated_draws_give_a_warning() -> None:
    """An autoregression of coefficient 0.95 is worth (1 - 0.95)/(1 + 0.95) of its draws: 51 of 2,000."""
    noise, draws = independent_draws(6), independent_draws(7)
    for t in range(1, 500):
        draws[:, t] = 0.95 * draws[:, t - 1] + (1 - 0.95**2) ** 0.5 * noise[:, t]
    result = diagnose(draws, draws)
    assert 15 < result.ess < 120
    assert result.warning is not None
    assert "(400 needed): raise iterations together with thinning" in result.warning


def test_a_parameter_that_never_moved_does_not_pass() -> None:
    draws = independent_draws(8)
    draws[:, :, 1] = 0.0
    assert not diagnose(draws, draws).ok


def test_large_models_are_checked_in_part_and_the_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = independent_draws(9, parameters=7)
    assert diagnostics._checked_parameters(7).tolist() == list(range(7))
    monkeypatch.setattr(diagnostics, "_MAX_CHECKED_PARAMETERS", 3)
    checked = diagnostics._checked_parameters(7).tolist()
    missed = next(index for index in range(7) if index not in checked)
    draws[2, :, missed] += 1.0
    assert diagnose(draws, draws).ok
    draws[2, :, checked[2]] += 1.0
    result = diagnose(draws, draws)
    assert result.r_hat > 1.1
    assert result.worst_parameter == checked[2]
    assert result.warning is not None
    assert f"parameter {checked[2]} (from 0, of 7): the chains disagree" in result.warning
    assert result.warning.endswith("3 of the 7 parameters were checked")


def test_even_steps_end_with_the_last_draw() -> None:
    draws = torch.arange(10).reshape(1, 10, 1)
    assert evenly_spaced_draws(draws, 3).flatten().tolist() == [2, 5, 9]
    assert torch.equal(evenly_spaced_draws(draws, 10), draws)


def test_arviz_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml, ml.inference.chains; print(sorted({'arviz', 'xarray', 'torch'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"
