"""Linear regression, whose posteriors are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.sample_readiness import diagnose_samples
from ml.certify.tempered import certify_tempered
from ml.forgetting.tempering import Tempered, temper
from ml.models.linear import LinearRegression
from ml.posteriors.mean_field import gaussian_kl
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior

FAMILY = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
RETAINED = 200


@pytest.fixture(scope="module")
def rows() -> Tensor:
    return torch.randn(240, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def draws(data: Tensor, seed: int) -> SampleSet:
    mean, covariance = exact_posterior(FAMILY, data)
    noise = torch.randn(1600, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return SampleSet(mean + noise @ torch.linalg.cholesky(covariance).T, torch.arange(4).repeat_interleave(400))


def run(data: Tensor, before: SampleSet, seed: int = 0) -> Tempered:
    forgotten = torch.arange(len(data) - RETAINED)
    return temper(FAMILY, before, data, forgotten, torch.Generator().manual_seed(seed))


def certify(tempered: Tempered, data: Tensor) -> Certificate:
    retained = data[len(data) - RETAINED :]
    return certify_tempered(tempered, diagnose_samples(FAMILY, tempered.sample_set, retained), len(data), RETAINED)


def test_the_estimate_covers_the_law_of_the_draws(rows: Tensor) -> None:
    """Draws of many runs together show their law; its divergence from the posterior is that of its moments."""
    runs = [run(rows, draws(rows, seed), seed) for seed in range(30)]
    pooled = SampleSet(
        torch.cat([tempered.sample_set.samples for tempered in runs]), torch.zeros(30 * 1600, dtype=torch.int64)
    )
    mean, covariance = exact_posterior(FAMILY, rows[40:])
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
    spread = torch.linalg.svdvals(whiten @ torch.linalg.cholesky(pooled.covariance))
    gap = whiten @ (pooled.mean - mean)
    truth = float(gaussian_kl(gap, spread, torch.ones_like(spread)).sum())
    certificate = certify(runs[0], rows)
    assert (certificate.level, certificate.reference_kind) == ("estimated", "posterior")
    assert truth < certificate.epsilon < 0.1
    assert certificate.constants.picked > 0
    assert certificate.interval == (0.0, certificate.epsilon)


def test_more_stages_cost_more(rows: Tensor) -> None:
    tempered = run(rows, draws(rows, 5))
    longer = replace(tempered, ess_path=(*tempered.ess_path, 0.5))
    added = certify(longer, rows).epsilon - certify(tempered, rows).epsilon
    ess = certify(tempered, rows).constants.chain_ess
    assert added == pytest.approx(2 * math.log1p(4 / ess), rel=1e-6)


def test_draws_of_something_else_are_not_certified(rows: Tensor) -> None:
    wide = draws(rows, 5)
    tempered = run(rows, wide)
    off = replace(tempered, sample_set=SampleSet(1.2 * tempered.sample_set.samples, wide.chain))
    certificate = certify(off, rows)
    assert (certificate.level, certificate.epsilon) == ("none", math.inf)
    assert "moved draws passed their diagnostics" in certificate.reasons[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"exact": False}, "minibatches"), ({"ess_path": (0.05, 0.5)}, "enough"), ({"acceptance": 0.1}, "accepted")],
)
def test_what_makes_the_stages_doubtful_refuses(rows: Tensor, change: dict[str, object], reason: str) -> None:
    certificate = certify(replace(run(rows, draws(rows, 5)), **change), rows)  # type: ignore[arg-type]
    assert certificate.level == "none"
    assert len(certificate.reasons) == 1
    assert reason in certificate.reasons[0]


def test_copies_of_a_point_stay_copies_and_are_not_certified(rows: Tensor) -> None:
    point = exact_posterior(FAMILY, rows)[0].expand(1600, -1)
    tempered = run(rows, SampleSet(point + 1e-6 * draws(rows, 1).samples, draws(rows, 1).chain))
    assert certify(tempered, rows).level == "none"
