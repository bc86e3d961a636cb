from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify import fresh_starts
from ml.certify.certificate import Certificate, FreshStarts
from ml.certify.fresh_starts import describe_fresh_starts, state_fresh_starts, try_fresh_starts
from ml.inference.variational import train
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.posteriors.mean_field import MeanFieldGaussian

FAMILY = GaussianMixture(components=3, dimensions=2, prior_std=10.0)
CENTRES = torch.tensor([[0.0, 0.0], [4.0, 0.0], [20.0, 0.0], [20.0, 8.0]], dtype=torch.float64)
BEST = torch.tensor([[2.0, 0.0], [20.0, 0.0], [20.0, 8.0]], dtype=torch.float64)
POOR = torch.tensor([[0.0, 0.0], [4.0, 0.0], [20.0, 4.0]], dtype=torch.float64)
CERTIFICATE = Certificate(1e-9, 1e-9, "proved", "minimum", "KL", 1, (), None, ("of this basin", "of copies"))


def rows(each: int = 60) -> Tensor:
    """Four clusters for three components: which two share one makes the difference."""
    noise = torch.randn(4 * each, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return CENTRES.repeat(each, 1) + noise


def optimum(start: Tensor, data: Tensor) -> MeanFieldGaussian:
    return train(FAMILY, data, MeanFieldGaussian(start, torch.full_like(start, 0.1))).posterior


def test_no_start_is_below_the_best_minimum() -> None:
    data = rows()
    at = FAMILY.expand(optimum(BEST, data), data)
    assert try_fresh_starts(FAMILY, at, data) == FreshStarts(tried=4, lower=0, lowest=0.0, rows=240)


def test_starts_below_a_poor_minimum_are_counted_and_measured() -> None:
    data = rows()
    poor, best = (FAMILY.expand(at, data) for at in (optimum(POOR, data), optimum(BEST, data)))
    starts = try_fresh_starts(FAMILY, poor, data)
    assert starts.lower >= 2
    assert starts.lowest == pytest.approx(poor.energy - best.energy, abs=1e-3)
    assert starts.lowest > 100


def test_of_many_rows_a_sample_is_compared_and_the_lowest_measured_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows(each=300)
    poor, best = (FAMILY.expand(at, data) for at in (optimum(POOR, data), optimum(BEST, data)))
    monkeypatch.setattr(fresh_starts, "_MAX_ROWS", 200)
    starts = try_fresh_starts(FAMILY, poor, data)
    assert (starts.rows, starts.lower >= 2) == (200, True)
    assert starts.lowest == pytest.approx(poor.energy - best.energy, abs=1e-3)
    assert try_fresh_starts(FAMILY, best, data) == FreshStarts(4, 0, 0.0, 200)


def test_what_is_lower_on_the_sample_alone_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sample without the fourth cluster, the best minimum of all rows wastes a component."""
    data = rows()
    best = FAMILY.expand(optimum(BEST, data), data)
    monkeypatch.setattr(fresh_starts, "_sample", lambda data: data[data[:, 1] < 5])
    assert try_fresh_starts(FAMILY, best, data) == FreshStarts(4, 0, 0.0, int((data[:, 1] < 5).sum()))


def test_the_certificate_states_the_starts_in_words() -> None:
    data = rows()
    stated = state_fresh_starts(CERTIFICATE, FAMILY, FAMILY.expand(optimum(POOR, data), data), data)
    assert stated.fresh_starts is not None
    assert stated.not_proved == ("of this basin", describe_fresh_starts(stated.fresh_starts), "of copies")
    assert replace(stated, fresh_starts=None, not_proved=CERTIFICATE.not_proved) == CERTIFICATE


def test_a_convex_energy_needs_no_starts() -> None:
    family = LinearRegression(dimensions=1, noise_std=1.0, prior_std=1.0)
    at = family.expand(family.optimum(rows()), rows())
    assert state_fresh_starts(CERTIFICATE, family, at, rows()) is CERTIFICATE


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        (FreshStarts(4, 0, 0.0, 10), "None of 4 fresh starts found a lower minimum; that is no proof"),
        (FreshStarts(4, 3, 12.3, 10), "3 of 4 fresh starts ended in a lower minimum, up to 12 nats below"),
    ],
)
def test_the_sentence_says_how_many_ended_lower(starts: FreshStarts, words: str) -> None:
    assert words in describe_fresh_starts(starts)
