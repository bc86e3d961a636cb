from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ml.certify.certificate import Certificate
from ml.certify.samples import REFERENCE as POSTERIOR_REFERENCE
from ml.certify.samples import certify_reweighted
from ml.certify.stored_draws import DIRECTION, REFERENCE, TAKEN_AS_GIVEN
from ml.inference.network_diagnostics import diagnose_network
from ml.ladder.policy import Policy
from ml.models.linear import LinearRegression
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior
from tests.ml.network_draws import NETWORK, NOT_POSTERIOR, draws, rows
from vocabulary.references import Reference

FORGOTTEN = torch.arange(1)


def certify(sample_set: SampleSet, reference: Reference, posterior_limit: float = math.inf) -> Certificate:
    diagnostics = diagnose_network(NETWORK, sample_set, rows(), reach=10.0)
    certified = certify_reweighted(
        NETWORK, sample_set, rows(), FORGOTTEN, diagnostics, 0.0, 0, reference, posterior_limit
    )
    return certified.certificate


def test_draws_that_pass_are_certified_against_the_posterior_under_either_policy() -> None:
    for reference in ("posterior", "stored draws"):
        certificate = certify(draws(), reference)  # type: ignore[arg-type]
        assert (certificate.level, certificate.reference_kind) == ("estimated", "posterior")
        assert certificate.reference == POSTERIOR_REFERENCE
        assert certificate.epsilon > certificate.constants.undetectable > 0
        assert certificate.constants.independent_draws > 100


def test_the_weaker_reference_is_taken_where_the_stronger_cannot_meet_the_limit() -> None:
    certificate = certify(draws(), "stored draws", posterior_limit=1e-3)
    assert (certificate.level, certificate.reference_kind) == ("estimated", "stored draws")
    assert certificate.constants.undetectable == 0.0
    assert certify(draws(), "posterior", posterior_limit=1e-3).reference_kind == "posterior"


@pytest.mark.parametrize("sample_set", NOT_POSTERIOR.values(), ids=NOT_POSTERIOR)
def test_another_law_is_never_certified_as_the_posterior(sample_set: Callable[[], SampleSet]) -> None:
    assert certify(sample_set(), "posterior").level == "none"
    assert certify(sample_set(), "stored draws").reference_kind == "stored draws"


def test_the_two_references_have_words_of_their_own() -> None:
    certificate = certify(NOT_POSTERIOR["half as wide"](), "stored draws")
    assert certificate.level == "estimated"
    assert (certificate.reference, certificate.direction) == (REFERENCE, DIRECTION)
    assert certificate.not_proved[0] == TAKEN_AS_GIVEN
    assert certificate.interval == (0.0, certificate.epsilon)
    assert certificate.constants.reading == "weighted draws"
    assert not Policy(1.0, level="estimated").met_by(certificate)
    assert Policy(1.0, level="estimated", reference="stored draws").met_by(certificate)


def test_the_bound_covers_the_closed_form_of_a_law_that_is_not_the_posterior() -> None:
    """Draws half again as wide as a Gaussian posterior: their law without a row is Gaussian, too."""
    family = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
    data = torch.randn(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, covariance = exact_posterior(family, data)
    noise = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    factor = 1.5 * torch.linalg.cholesky(covariance)
    wide = SampleSet(mean + noise @ factor.T, torch.arange(4).repeat_interleave(500))
    certified = certify_reweighted(family, wide, data, FORGOTTEN, None, 0.0, 0, "stored draws")
    x, y = data[0, :2], data[0, 2]
    precision = torch.linalg.inv(factor @ factor.T)
    after = precision - torch.outer(x, x)
    shifted = torch.linalg.solve(after, precision @ mean - x * y)
    reference = torch.distributions.MultivariateNormal(shifted, precision_matrix=after)
    law = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
    many = reference.sample((100_000,))
    weights = (reference.log_prob(many) - law.log_prob(many)).exp()
    exact = float(torch.log1p((weights - 1) / 2_000).mean())
    assert certified.certificate.level == "estimated"
    assert exact < certified.certificate.epsilon < 20 * exact
