from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ml.inference import network_diagnostics
from ml.inference.diagnostics import least_undetectable
from ml.inference.network_diagnostics import diagnose_network
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from tests.ml.network_draws import NETWORK, NOT_POSTERIOR, WORTHLESS, draws, rows, unmixed


def test_true_draws_pass() -> None:
    diagnostics = diagnose_network(NETWORK, draws(), rows())
    assert diagnostics.warning is None
    assert diagnostics.functions is not None
    assert (diagnostics.r_hat, diagnostics.ess) == (diagnostics.functions.r_hat, diagnostics.functions.ess)
    assert diagnostics.width == pytest.approx(1.0, abs=0.05)
    assert 0 < diagnostics.undetectable < 0.2


@pytest.mark.parametrize("sample_set", [*WORTHLESS.values(), *NOT_POSTERIOR.values()], ids=[*WORTHLESS, *NOT_POSTERIOR])
def test_wrong_draws_fail(sample_set: Callable[[], SampleSet]) -> None:
    assert not diagnose_network(NETWORK, sample_set(), rows()).ok


def test_minibatch_gradients_are_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = draws().samples[:1]
    batches = network_diagnostics._gradients(NETWORK, theta.expand(2_000, -1), rows(), batch_size=32)
    exact = Potential(NETWORK, rows()).gradient(theta[0])
    error = batches.std(0) / math.sqrt(2_000)
    assert torch.allclose(batches.mean(0), exact, atol=4 * float(error.max()))
    assert float(error.min()) > 0
    assert torch.allclose(network_diagnostics._gradients(NETWORK, theta, rows(), 100)[0], exact)


def test_noise_of_the_gradients_raises_what_is_undetectable(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = diagnose_network(NETWORK, draws(), rows())
    monkeypatch.setattr(network_diagnostics, "_BUDGET", 0.0)
    noisy = diagnose_network(NETWORK, draws(), rows())
    assert noisy.ok
    assert noisy.undetectable > 1.5 * exact.undetectable


def test_gradients_that_tell_nothing_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_diagnostics, "_BUDGET", 0.0)
    monkeypatch.setattr(network_diagnostics, "_MIN_ROWS", 1)
    monkeypatch.setattr(network_diagnostics, "_CHECKED_DRAWS", 40)
    warning = diagnose_network(NETWORK, draws(), rows()).warning
    assert warning is not None
    assert "too noisy to tell" in warning


def test_draws_that_fail_in_function_space_need_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_diagnostics, "_gradients", None)
    diagnostics = diagnose_network(NETWORK, unmixed(), rows(), reach=10.0)
    assert not diagnostics.ok
    assert math.isnan(diagnostics.mean_gradient)
    assert diagnostics.undetectable == math.inf


def test_rows_may_be_stored_in_float32() -> None:
    single = diagnose_network(NETWORK, draws(), rows().float())
    assert single.ok
    assert single.width == pytest.approx(diagnose_network(NETWORK, draws(), rows()).width, abs=1e-3)


def test_an_epsilon_that_no_gradient_could_show_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    least = least_undetectable(NETWORK.parameter_count, 1200)
    assert least <= diagnose_network(NETWORK, draws(), rows()).undetectable < 3 * least
    monkeypatch.setattr(network_diagnostics, "_gradients", None)
    warning = diagnose_network(NETWORK, draws(), rows(), reach=0.9 * least).warning
    assert warning is not None
    assert "for the reference 'stored draws'" in warning
