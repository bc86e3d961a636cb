from __future__ import annotations

from dataclasses import replace

from ml.certify.network_resampled import MAY_BE_POSTERIOR, NOT_POSTERIOR, certify_resampled_network
from ml.inference.network_diagnostics import diagnose_network
from ml.ladder.policy import Policy
from tests.ml.network_draws import NETWORK, draws, rows


def test_new_draws_that_pass_are_draws_of_the_posterior() -> None:
    certificate = certify_resampled_network(diagnose_network(NETWORK, draws(), rows()), 100)
    assert (certificate.level, certificate.epsilon, certificate.reference_kind) == ("retrained", 0.0, "posterior")
    assert MAY_BE_POSTERIOR in certificate.not_proved


def test_new_draws_that_fail_are_still_without_the_rows_and_claim_no_posterior() -> None:
    diagnostics = replace(diagnose_network(NETWORK, draws(), rows()), warning="the chains disagree")
    certificate = certify_resampled_network(diagnostics, 100)
    assert (certificate.level, certificate.epsilon, certificate.reference_kind) == ("retrained", 0.0, None)
    assert certificate.not_proved[0] == NOT_POSTERIOR + "the chains disagree"
    assert Policy(1e-3, level="retrained", rungs=("retrain",)).met_by(certificate)
