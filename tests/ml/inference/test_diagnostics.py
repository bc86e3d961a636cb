from __future__ import annotations

import subprocess
import sys

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
