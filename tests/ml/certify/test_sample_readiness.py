from __future__ import annotations

import math
import re

import pytest
import torch

from ml.certify.importance import weigh_unmoved
from ml.certify.sample_readiness import check_samples, diagnose_samples
from ml.inference.diagnostics import diagnose, evenly_spaced_draws
from ml.models.linear import LinearRegression
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior

FAMILY = LinearRegression(dimensions=3, noise_std=0.5, prior_std=1.0)


def rows(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    target = features @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    noise = 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.cat([features, (target + noise).unsqueeze(1)], 1)


def samples(width: float = 1.0, chains: int = 4, each: int = 1000, apart: float = 0.0) -> SampleSet:
    """Independent draws of the exact posterior, optionally wider or with chains that are apart."""
    mean, covariance = exact_posterior(FAMILY, rows())
    noise = torch.randn(chains * each, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    chain = torch.arange(chains).repeat_interleave(each)
    offsets = width * noise @ torch.linalg.cholesky(covariance).T
    return SampleSet(mean + offsets + apart * chain.unsqueeze(1) * covariance.diagonal().sqrt(), chain)


def test_samples_of_the_posterior_are_ready_to_be_estimated() -> None:
    readiness = check_samples(FAMILY, samples(), rows())
    assert (readiness.levels, readiness.advice) == (("estimated",), ())
    assert readiness.numbers["largest_divergence"] == pytest.approx(math.log(4000))
    assert (readiness.numbers["chains"], readiness.numbers["draws"]) == (4, 4000)
    assert readiness.numbers["width"] == pytest.approx(1.0, abs=0.05)


def test_the_epsilon_in_reach_is_what_the_draws_cannot_exclude() -> None:
    """It falls as one over the draws, of which 500 a chain are checked."""
    many, few = (check_samples(FAMILY, samples(each=each), rows()) for each in (500, 125))
    reach = many.numbers["epsilon_in_reach"]
    assert reach == diagnose_samples(FAMILY, samples(each=500), rows()).undetectable
    assert 2 < few.numbers["epsilon_in_reach"] / reach < 8
    assert f"epsilon in reach: {reach:.2g} nats" in many.findings[2]
    assert "register more chains" in many.findings[2]


def test_the_parameter_that_is_off_is_named() -> None:
    """The posterior of rows whose second weight was another: its draws are far off in that weight."""
    sample_set = samples()
    shift = torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64) * sample_set.samples.std(0)
    shifted = SampleSet(sample_set.samples + shift, sample_set.chain)
    readiness = check_samples(FAMILY, shifted, rows())
    assert readiness.levels == ()
    assert readiness.advice[0].startswith("parameter 1 (from 0, of 3): the mean gradient is")
    assert "Check that rows, prior and model are those of the chain" in readiness.advice[0]


def test_samples_are_diagnosed_chain_by_chain_with_the_gradients_of_500_draws_each() -> None:
    sample_set = samples()
    chains = sample_set.samples.view(4, 1000, 3)
    selected = evenly_spaced_draws(chains, 500)
    gradients = Potential(FAMILY, rows()).gradients(selected.reshape(-1, 3)).view(4, 500, 3)
    assert diagnose_samples(FAMILY, sample_set, rows()) == diagnose(chains, gradients)
    short = samples(each=20)
    chains = short.samples.view(4, 20, 3)
    gradients = Potential(FAMILY, rows()).gradients(short.samples).view(4, 20, 3)
    assert diagnose_samples(FAMILY, short, rows()) == diagnose(chains, gradients)


def test_chains_are_truncated_to_the_shortest() -> None:
    """The draws beyond it would be noticed: they are ten times as wide."""
    even, longer = samples(chains=2), samples(width=10.0, chains=1, each=500)
    uneven = SampleSet(torch.cat([even.samples, longer.samples]), torch.cat([even.chain, longer.chain]))
    assert diagnose_samples(FAMILY, uneven, rows()) == diagnose_samples(FAMILY, even, rows())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"width": 2.0}, "(1.9|2.0). times as wide"), ({"apart": 1.0}, "disagree"), ({"each": 20}, "independent ones")],
)
def test_samples_of_another_distribution_are_not_ready(changes: dict[str, float], complaint: str) -> None:
    readiness = check_samples(FAMILY, samples(**changes), rows())  # type: ignore[arg-type]
    assert readiness.levels == ()
    assert len(readiness.advice) == 1
    assert re.search(complaint, readiness.advice[0])


def test_weighted_samples_are_diagnosed_by_their_weights() -> None:
    """Draws given all rows, weighted for the retained ones: with their weights they pass, without them they do not."""
    family = LinearRegression(2, noise_std=1.0, prior_std=1.0)
    data = torch.randn(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, covariance = exact_posterior(family, data)
    noise = torch.randn(2000, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    even = SampleSet(mean + noise @ torch.linalg.cholesky(covariance).T, torch.arange(4).repeat_interleave(500))
    weighted = weigh_unmoved(family, even, data[:30])
    assert diagnose_samples(family, even, data).ok
    assert not diagnose_samples(family, even, data[30:]).ok
    assert diagnose_samples(family, weighted, data[30:]).ok
