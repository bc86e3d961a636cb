"""Readiness of a network's sample set: which reference it can be certified against, and what single rows would leave.

Some random rows are forgotten by weights alone, as a rehearsal: what they leave is what a deletion of one person of one
row has to expect. Nothing is changed.
"""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.importance import relative_ess
from ml.certify.readiness import Readiness
from ml.certify.samples import certify_reweighted
from ml.inference.diagnostics import Diagnostics
from ml.inference.function_mixing import FunctionMixing, measure_functions
from ml.inference.network_diagnostics import diagnose_network
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.references import DEFAULT_REFERENCE, Reference

_REHEARSED_ROWS = 5
_REHEARSAL_SEED = 1
_STORED_ONLY = (
    "the draws can be certified against the law of the stored draws only: set the policy's reference to 'stored "
    "draws', which promises less, or run chains that pass: "
)
_AS_ALLOWED = (
    "certificates are against the law of the stored draws, as the policy allows: the draws do not pass for draws of "
    "the posterior: "
)
_NOTHING = "no certificate without retraining: run more chains, longer ones, or refresh them on the rows: "


def check_network_samples(
    network: Network, sample_set: SampleSet, data: Tensor, reference: Reference = DEFAULT_REFERENCE
) -> Readiness:
    """Check stored samples of a network against the rows of their posterior. `reference` is the weakest one allowed."""
    network.check_data(data)
    diagnostics = diagnose_network(network, sample_set, data)
    functions = diagnostics.functions or measure_functions(network, sample_set, data)
    rehearsals = rehearse(network, sample_set, data, diagnostics)
    issued = [certificate for certificate in rehearsals if certificate.level != "none"]
    posterior = any(certificate.reference_kind == "posterior" for certificate in issued)
    numbers = _numbers(diagnostics, functions, sample_set) | {
        "posterior_in_reach": float(posterior),
        "stored_draws_in_reach": float(bool(issued)),
        "rehearsed_relative_ess": statistics.median(c.constants.relative_ess for c in rehearsals),
        "rehearsed_epsilon": statistics.median(c.epsilon for c in rehearsals),
    }
    findings = [*_describe(diagnostics, functions, numbers), _describe_rehearsals(rehearsals, len(issued))]
    advice = _advice(diagnostics, posterior, rehearsals, issued)
    if issued and not posterior and reference == "stored draws":
        findings.append(_AS_ALLOWED + (diagnostics.warning or ""))
        advice = ()
    return Readiness(("estimated",) if issued else (), math.nan, numbers, tuple(findings), advice)


def rehearse(network: Network, sample_set: SampleSet, data: Tensor, diagnostics: Diagnostics) -> list[Certificate]:
    """Return the certificates that forgetting each of some random rows by weights alone would have."""
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(_REHEARSAL_SEED))[:_REHEARSED_ROWS]
    return [
        certify_reweighted(
            network, sample_set, data, row.unsqueeze(0), diagnostics, limit=0.0, reference="stored draws"
        ).certificate
        for row in rows.to(data.device)
    ]


def _numbers(diagnostics: Diagnostics, functions: FunctionMixing, sample_set: SampleSet) -> dict[str, float]:
    return {
        "r_hat": functions.r_hat,
        "typical_r_hat": functions.typical_r_hat,
        "ess": functions.ess,
        "effective_parameters": functions.effective_parameters,
        "width": diagnostics.width,
        "mean_gradient": diagnostics.mean_gradient,
        "mean_gradient_limit": diagnostics.mean_gradient_limit,
        "virial": diagnostics.virial,
        "virial_limit": diagnostics.virial_limit,
        "epsilon_in_reach": diagnostics.undetectable,
        "relative_ess": relative_ess(sample_set.log_weights),
        "chains": float(functions.chains),
        "draws": float(len(sample_set.samples)),
    }


def _describe(diagnostics: Diagnostics, functions: FunctionMixing, numbers: dict[str, float]) -> tuple[str, ...]:
    return (
        f"R-hat {functions.r_hat:.3f} for the worst of {functions.rows} rows' log-likelihoods and "
        f"{functions.typical_r_hat:.3f} for the one in the middle, {functions.ess:.0f} effective draws; they vary as "
        f"those of {functions.effective_parameters:.3g} parameters that the rows inform",
        f"{diagnostics.width:.2f} times as wide as the posterior; mean gradient {diagnostics.mean_gradient:.1f} "
        f"standard errors from 0 (limit {diagnostics.mean_gradient_limit:.1f}), virial {diagnostics.virial:.1f} from 1 "
        f"(limit {diagnostics.virial_limit:.1f}), each of the worst parameter",
        f"epsilon in reach against the posterior: {diagnostics.undetectable:.2g} nats, the divergence that so many "
        "draws cannot exclude; it falls as one over their number",
        f"the weights of earlier deletions leave {100 * numbers['relative_ess']:.3g} % of the draws",
    )


def _describe_rehearsals(rehearsals: list[Certificate], issued: int) -> str:
    shares = [certificate.constants.relative_ess for certificate in rehearsals]
    return (
        f"rung reweight: a random single row leaves an ESS/N of {statistics.median(shares):.2f} ({min(shares):.2f} to "
        f"{max(shares):.2f} for {len(shares)} rows); {issued} of {len(shares)} would be certified"
    )


def _advice(
    diagnostics: Diagnostics, posterior: bool, rehearsals: list[Certificate], issued: list[Certificate]
) -> tuple[str, ...]:
    if posterior:
        return ()
    if issued:
        return (_STORED_ONLY + (diagnostics.warning or ""),)
    reasons = diagnostics.warning or "; ".join(rehearsals[0].reasons)
    return (_NOTHING + reasons,)
