from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from ml.inference import diagnostics
from ml.inference.diagnostics import diagnose, evenly_spaced_draws


def independent(seed: int = 0, chains: int = 4, kept: int = 500, parameters: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(chains, kept, parameters, generator=generator, dtype=torch.float64)


def test_independent_draws_of_the_posterior_pass() -> None:
    """Of U = |θ|²/2 the gradient is θ itself."""
    draws = independent()
    found = diagnose(draws, draws)
    assert found.ok
    assert found.warning is None
    assert 1 <= found.r_hat < 1.006
    assert found.ess == pytest.approx(2000, rel=0.2)
    assert found.width == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("factor", [0.5, 1.3, 5.0])
def test_draws_of_another_width_are_told_by_their_factor(factor: float) -> None:
    """They mix perfectly: only the gradients of the potential can tell."""
    draws = factor * independent(1)
    found = diagnose(draws, draws)
    assert found.width == pytest.approx(factor, rel=0.04)
    assert found.r_hat < 1.01
    assert not found.ok
    assert found.warning is not None
    assert found.warning.startswith(f"the draws spread {found.width:.2f} times as wide as the posterior")
    assert ("lower the step size" in found.warning) == (factor > 1)
    assert ("raise iterations" in found.warning) == (factor < 1)


def test_the_width_is_measured_from_the_draws_own_mean() -> None:
    draws = independent(2) + 100.0
    assert diagnose(draws, draws - 100.0).width == pytest.approx(1.0, abs=0.04)


def test_some_draws_are_enough_for_the_width() -> None:
    draws = independent(3)
    found = diagnose(draws, evenly_spaced_draws(draws, 100))
    assert found.ok
    assert found.width == pytest.approx(1.0, abs=0.08)


def test_gradients_that_push_outwards_leave_no_width() -> None:
    draws = independent(4)
    found = diagnose(draws, -draws)
    assert found.width == 0.0
    assert not found.ok


def test_a_chain_apart_from_the_others_is_told() -> None:
    draws = independent(5)
    draws[2, :, 1] += 1.0
    found = diagnose(draws, draws)
    assert found.r_hat > 1.1
    assert found.warning is not None
    assert "the chains disagree" in found.warning
    assert "burn_in" in found.warning


def test_draws_that_repeat_each_other_are_told() -> None:
    """An autoregression of coefficient 0.95 is worth (1 - 0.95)/(1 + 0.95) of its draws: 51 of 2,000."""
    noise, draws = independent(6), independent(7)
    for t in range(1, 500):
        draws[:, t] = 0.95 * draws[:, t - 1] + (1 - 0.95**2) ** 0.5 * noise[:, t]
    found = diagnose(draws, draws)
    assert 15 < found.ess < 120
    assert found.warning is not None
    assert "(400 needed): raise iterations together with thinning" in found.warning


def test_a_parameter_that_never_moved_does_not_pass() -> None:
    draws = independent(8)
    draws[:, :, 1] = 0.0
    assert not diagnose(draws, draws).ok


def test_large_models_are_looked_at_in_part_and_the_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = independent(9, parameters=7)
    looked_at = diagnostics._checked_parameters(7).tolist()
    assert sorted(looked_at) == list(range(7))
    draws[2, :, looked_at[3]] += 1.0
    told = diagnose(draws, draws)
    assert told.r_hat > 1.1
    assert told.warning is not None
    assert "parameters only" not in told.warning
    monkeypatch.setattr(diagnostics, "_MAX_CHECKED_PARAMETERS", 3)
    missed = diagnose(draws, draws)
    assert missed.r_hat < 1.01
    draws[2, :, looked_at[2]] += 1.0
    found = diagnose(draws, draws)
    assert found.r_hat > 1.1
    assert found.warning is not None
    assert "of 3 of the 7 parameters only" in found.warning


def test_even_steps_end_with_the_last_draw() -> None:
    draws = torch.arange(10).reshape(1, 10, 1)
    assert evenly_spaced_draws(draws, 3).flatten().tolist() == [2, 5, 9]
    assert torch.equal(evenly_spaced_draws(draws, 10), draws)


def test_arviz_is_not_loaded_before_it_is_needed() -> None:
    script = "import sys, ml, ml.inference.chains; print(sorted({'arviz', 'xarray', 'torch'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['torch']"
