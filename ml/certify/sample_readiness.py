"""Readiness of a sample set: whether it can be drawn from its posterior, and which epsilon its draws allow.

The tests are those of `ml.inference.diagnostics`; samples that came from elsewhere are judged by the same ones.
"""

from __future__ import annotations

import math

from torch import Tensor

from ml.certify.readiness import Readiness
from ml.inference.diagnostics import Diagnostics, diagnose, evenly_spaced_draws
from ml.inference.mixing import by_chain
from ml.inference.network_diagnostics import diagnose_network
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

_CHECKED_DRAWS = 500  # a chain


def check_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Readiness:
    """Check stored samples against the rows of their posterior."""
    likelihood.check_data(data)
    diagnostics = diagnose_samples(likelihood, sample_set, data)
    numbers = _numbers(diagnostics, sample_set)
    findings = (
        f"R-hat {diagnostics.r_hat:.3f}, {diagnostics.ess:.0f} effective draws, "
        f"{diagnostics.width:.2f} times as wide as the posterior",
        f"mean gradient {diagnostics.mean_gradient:.1f} standard errors from 0 (limit "
        f"{diagnostics.mean_gradient_limit:.1f}), virial {diagnostics.virial:.1f} from 1 (limit "
        f"{diagnostics.virial_limit:.1f}), each of the worst parameter",
        f"epsilon in reach: {diagnostics.undetectable:.2g} nats, the divergence that so many draws cannot exclude; it "
        f"falls as one over their number: register more chains, or more draws up to {_CHECKED_DRAWS} a chain",
        f"{len(sample_set.samples)} draws can reveal a divergence of at most {numbers['largest_divergence']:.1f} nats",
    )
    if diagnostics.warning is not None:
        return Readiness((), math.nan, numbers, findings, (diagnostics.warning,))
    return Readiness(("estimated",), math.nan, numbers, findings, ())


def _numbers(diagnostics: Diagnostics, sample_set: SampleSet) -> dict[str, float]:
    return {
        "r_hat": diagnostics.r_hat,
        "ess": diagnostics.ess,
        "width": diagnostics.width,
        "mean_gradient": diagnostics.mean_gradient,
        "mean_gradient_limit": diagnostics.mean_gradient_limit,
        "virial": diagnostics.virial,
        "virial_limit": diagnostics.virial_limit,
        "epsilon_in_reach": diagnostics.undetectable,
        "chains": float(len(set(sample_set.chain.tolist()))),
        "draws": float(len(sample_set.samples)),
        "largest_divergence": math.log(len(sample_set.samples)),
    }


def diagnose_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Diagnostics:
    """Test whether the weighted samples can be draws of p(θ | data). Chains are truncated to the shortest one."""
    if isinstance(likelihood, Network):
        return diagnose_network(likelihood, sample_set, data)
    draws = by_chain(sample_set.samples, sample_set.chain)
    log_weights = by_chain(sample_set.log_weights, sample_set.chain)
    selected = evenly_spaced_draws(draws, min(draws.shape[1], _CHECKED_DRAWS))
    gradients = Potential(likelihood, data).gradients(selected.flatten(0, 1))
    return diagnose(draws, gradients.view_as(selected), log_weights)
