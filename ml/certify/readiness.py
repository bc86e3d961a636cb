"""Readiness of a posterior: which certificate levels it can reach as registered, and how to improve it.

Certificates refer to an optimum, and training may have stopped before reaching it. Distances are measured in the
natural metric of a mean-field Gaussian, in which a step of length r is a divergence of about ½r²:

    residual     ‖D^(-½)∇F‖              D = diag(1/σ², 2/σ²) over (μ, σ)
    lambda_min   of D^(-½)∇²F D^(-½)     residual/lambda_min is about the distance to the optimum

For a network the Hessian cannot be stored: lambda_min is a Lanczos lower bound on a sample of rows, for the means only.
The residual is compared with the gradient of a single row, because minibatch training leaves that of hundreds of rows.

For a sample set, R̂, effective sample size and width test whether it was drawn from its posterior.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import plain
from ml.certify.kantorovich import certify_expansion
from ml.certify.network.kantorovich import least_curvature
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.diagnostics import Diagnostics, diagnose, evenly_spaced_draws
from ml.models.family import Expansion, Family
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.levels import Level

CONVERGED = 1e-6
"""Largest distance from the optimum, in nats, that no practical policy would notice."""
_WIDTH_DRAWS = 200
_MAX_RESIDUAL_SHARE = 0.01  # residual of a network in single-row gradients, as a share of the rows

POLISH = "run `lethe model polish` and register the result"
RESTART = (
    "the first deletion will have to retrain the model (rungs warm, retrain): train it from another start, or with "
    "fewer components, and register the result"
)


@dataclass(frozen=True)
class Readiness:
    """Levels that certificates can reach without retraining, with findings and advice in words.

    Retraining always reaches "retrained". `distance` bounds the KL divergence in nats to the converged posterior; it is
    NaN if there is no such bound.
    """

    levels: tuple[Level, ...]
    distance: float
    numbers: dict[str, float]
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.advice

    def to_dict(self) -> dict[str, object]:
        """Return the readiness as JSON values."""
        fields = {**asdict(self), "ready": self.ready}
        return {name: plain(value) for name, value in fields.items()}


def check_variational(family: Family, posterior: MeanFieldGaussian, data: Tensor) -> Readiness:
    """Check a mean-field posterior against the rows it was trained on."""
    family.check_data(data)
    family.check_posterior(posterior)
    expansion = family.expand(posterior, data)
    certificate = certify_expansion(family, expansion, data)
    residual, lambda_min = _natural_metric(expansion)
    numbers = {"residual": residual, "lambda_min": lambda_min, "kantorovich": certificate.constants.kantorovich}
    findings = [
        f"the gradient left by training is {residual:.2g} in the natural metric, the least curvature {lambda_min:.2g}"
    ]
    if not lambda_min > 0:
        findings.append("the posterior is not near a minimum: the energy curves downwards in some direction")
        return Readiness((), math.inf, numbers, tuple(findings), (RESTART,))
    if certificate.level != "proved":
        findings += certificate.reasons
        return Readiness((), math.inf, numbers, tuple(findings), (f"training has not reached its optimum: {POLISH}",))
    distance = certificate.epsilon
    findings.append(f"the optimum is proved to lie within {distance:.2g} nats")
    if distance > CONVERGED:
        return Readiness(
            ("proved",),
            distance,
            numbers,
            tuple(findings),
            (f"every deletion spends Newton steps on the distance that training left: {POLISH}",),
        )
    return Readiness(("proved",), distance, numbers, tuple(findings), ())


def check_network(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> Readiness:
    """Check a network's mean-field posterior against its training rows. Its certificates are at most estimated."""
    network.check_posterior(posterior)
    network.check_data(data)
    generator = torch.Generator().manual_seed(seed)
    energy = NetworkEnergy(network, data, frozen_draws(posterior, DEFAULT_RECIPE.draws, seed=0))
    rows = torch.randperm(len(data), generator=generator)[: DEFAULT_RECIPE.min_rows].to(data.device)
    gradient = energy.gradient(torch.zeros_like(posterior.mean), torch.arange(len(data)))
    residual = float((posterior.std * gradient).norm())
    fisher_per_row = energy.fisher_diagonal(rows, generator) / len(rows)
    residual_of_a_row = math.sqrt(float(posterior.std.square().dot(fisher_per_row)))
    numbers = {
        "residual": residual,
        "residual_of_a_row": residual_of_a_row,
        "lambda_min": least_curvature(energy, posterior.std, rows, len(data), generator),
    }
    equivalent_rows = residual / residual_of_a_row
    findings = (
        f"the gradient left by training is {residual:.2g} in the natural metric, as large as that of "
        f"{equivalent_rows:.0f} rows pulling in one direction; the data set has {len(data)} rows",
    )
    if equivalent_rows > _MAX_RESIDUAL_SHARE * len(data):
        advice = (f"training has not converged, and forgetting does not correct that: {POLISH}",)
        return Readiness(("estimated",), math.nan, numbers, findings, advice)
    return Readiness(("estimated",), math.nan, numbers, findings, ())


def check_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Readiness:
    """Check stored samples against the rows of their posterior."""
    likelihood.check_data(data)
    diagnostics = diagnose_samples(likelihood, sample_set, data)
    numbers = {
        "r_hat": diagnostics.r_hat,
        "ess": diagnostics.ess,
        "width": diagnostics.width,
        "chains": float(len(set(sample_set.chain.tolist()))),
        "draws": float(len(sample_set.samples)),
        "largest_divergence": math.log(len(sample_set.samples)),
    }
    findings = (
        f"R-hat {diagnostics.r_hat:.3f}, {diagnostics.ess:.0f} effective draws, "
        f"{diagnostics.width:.2f} times as wide as the posterior",
        f"{len(sample_set.samples)} draws can reveal a divergence of at most {numbers['largest_divergence']:.1f} nats",
    )
    if diagnostics.warning is not None:
        return Readiness((), math.nan, numbers, findings, (diagnostics.warning,))
    return Readiness(("estimated",), math.nan, numbers, findings, ())


def diagnose_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Diagnostics:
    """Test whether the samples can be draws of p(θ | data). Chains are truncated to the shortest one."""
    draws = _by_chain(sample_set)
    selected = evenly_spaced_draws(draws, min(draws.shape[1], _WIDTH_DRAWS))
    gradients = Potential(likelihood, data).gradients(selected.flatten(0, 1))
    return diagnose(draws, gradients.view_as(selected))


def _natural_metric(expansion: Expansion) -> tuple[float, float]:
    """Return residual and lambda_min."""
    std = expansion.posterior.std.flatten()
    scale = torch.cat([std, std / math.sqrt(2)])
    curvature = expansion.hessian * scale * scale.unsqueeze(1)
    return float((scale * expansion.gradient).norm()), float(torch.linalg.eigvalsh(curvature)[0])


def _by_chain(sample_set: SampleSet) -> Tensor:
    """Return the samples as (chains, length, p)."""
    chains = [sample_set.samples[sample_set.chain == number] for number in sorted(set(sample_set.chain.tolist()))]
    length = min(len(chain) for chain in chains)
    return torch.stack([chain[:length] for chain in chains])
