from __future__ import annotations

import math

import pytest
import torch

from ml.certify.network import could_fall as module
from ml.certify.network.could_fall import _energies, could_fall
from ml.inference.bayes_by_backprop import BayesByBackprop
from ml.models.network_energy import NetworkEnergy
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, learnable_rows


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    training = BayesByBackprop(60, 64, 1e-2, 0.3, 20, draws=1, optimiser="adam", noise="weights")
    monkeypatch.setattr(module, "_TRAINING", training)


def test_a_narrow_posterior_has_the_energy_of_its_means_and_its_divergence_from_the_prior() -> None:
    data, mean = learnable_rows(TINY, 100), TINY.initial(seed=4).mean
    posterior = MeanFieldGaussian(mean, torch.full_like(mean, 1e-4))
    misfit = NetworkEnergy(TINY, data, mean.unsqueeze(0)).misfit(torch.zeros_like(mean), torch.arange(100))
    s = TINY.prior_std
    divergence = float((mean.square() + 1e-8).sum()) / (2 * s**2) - len(mean) * (math.log(1e-4 / s) + 0.5)
    assert _energies(TINY, posterior, data).tolist() == pytest.approx([misfit + divergence] * 8, rel=1e-4)


def test_samples_of_many_rows_estimate_the_energy_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data, posterior = learnable_rows(TINY, 400), TINY.initial(seed=4)
    exact = _energies(TINY, posterior, data)
    monkeypatch.setattr(module, "_ROWS", 100)
    sampled = _energies(TINY, posterior, data)
    assert float(sampled.std()) > float(exact.std())
    assert float(sampled.mean()) == pytest.approx(float(exact.mean()), abs=4 * float(sampled.std()) / math.sqrt(8))


@pytest.mark.usefixtures("short")
def test_training_that_was_left_early_shows_a_fall_and_its_error() -> None:
    data = learnable_rows(TINY, 200)
    start = TINY.initial(seed=1)
    fall = could_fall(TINY, start, data)
    assert fall.nats > 20
    assert 0 < fall.standard_error < 0.1 * fall.nats
    assert fall.energy == pytest.approx(float(_energies(TINY, start, data).mean()))
    assert could_fall(TINY, start, data) == fall


def test_where_every_training_ends_higher_nothing_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    start = TINY.initial(seed=1)
    worse = MeanFieldGaussian(start.mean + 5.0, start.std)
    monkeypatch.setattr(module, "_continue", lambda *_: worse)
    assert could_fall(TINY, start, learnable_rows(TINY, 50)).nats == 0
