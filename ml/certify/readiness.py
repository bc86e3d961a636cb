"""What can be certified of a posterior as it stands, before anybody asks to be forgotten, and what would help.

Every certificate speaks of an optimum, and training may have stopped short of it. In the natural metric of a mean-field
Gaussian, where a step of length r is a divergence of about ½r²,

    residual     ‖D^(-½)∇F‖              D = diag(1/σ², 2/σ²) over (μ, σ)
    lambda_min   of D^(-½)∇²F D^(-½)     so that residual/lambda_min is about the distance to the optimum

Of a network's means alone, on a sample of rows and with Lanczos' lower bound, since no Hessian can be stored; beside
the pull of a single row there, because training by minibatches leaves the pull of hundreds.

Of a sample set the question is whether it was drawn from its posterior: R̂, effective sample size, width.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import plain
from ml.certify.kantorovich import certify_expansion
from ml.certify.network.theorem import least_curvature
from ml.forgetting.network import DEFAULT_RECIPE
from ml.inference.diagnostics import Diagnostics, at_even_steps, diagnose
from ml.models.family import Expansion, Family
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.levels import Level

CONVERGED = 1e-6
"""Nats from the optimum below which training leaves nothing that a policy would notice."""
_WIDTH_DRAWS = 200
_MOST_PULLING = 0.01  # of the rows

POLISH = "`lethe model polish` brings it there"
RESTART = (
    "the first deletion has to train it again (rungs warm, retrain); train it from another start, or with fewer "
    "components, and register that instead"
)


@dataclass(frozen=True)
class Readiness:
    """`levels` are those that a certificate can reach without retraining; retraining always reaches "retrained".

    `distance` bounds, or estimates, the KL divergence in nats to what full convergence would give.
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
        """Plain JSON values; infinity and NaN, which JSON lacks, become None."""
        fields = {**asdict(self), "ready": self.ready}
        return {name: plain(value) for name, value in fields.items()}


def check_variational(family: Family, posterior: MeanFieldGaussian, data: Tensor) -> Readiness:
    """Of a mean-field posterior and the rows it was trained on."""
    family.check_data(data)
    family.check_posterior(posterior)
    at = family.expand(posterior, data)
    certificate = certify_expansion(family, at, data)
    residual, lambda_min = _natural(at)
    numbers = {"residual": residual, "lambda_min": lambda_min, "kantorovich": certificate.constants.kantorovich}
    findings = [
        f"the gradient left by training is {residual:.2g} in the natural metric, the least curvature {lambda_min:.2g}"
    ]
    if not lambda_min > 0:
        findings.append("the posterior is not in a basin: in some direction the energy curves downwards")
        return Readiness((), math.inf, numbers, tuple(findings), (RESTART,))
    if certificate.level != "proved":
        findings += certificate.reasons
        return Readiness((), math.inf, numbers, tuple(findings), (f"training is not near its optimum: {POLISH}",))
    distance = certificate.epsilon
    findings.append(f"the optimum is proved to be within {distance:.2g} nats")
    if distance > CONVERGED:
        return Readiness(
            ("proved",),
            distance,
            numbers,
            tuple(findings),
            (f"every deletion pays for what training left over, by Newton steps: {POLISH}",),
        )
    return Readiness(("proved",), distance, numbers, tuple(findings), ())


def check_network(network: Network, posterior: MeanFieldGaussian, data: Tensor, seed: int = 0) -> Readiness:
    """Of a network's mean-field posterior and the rows it was trained on. Its certificates are never proved."""
    network.check_posterior(posterior)
    network.check_data(data)
    generator = torch.Generator().manual_seed(seed)
    energy = NetworkEnergy(network, data, frozen_draws(posterior, DEFAULT_RECIPE.draws, seed=0))
    rows = torch.randperm(len(data), generator=generator)[: DEFAULT_RECIPE.min_rows].to(data.device)
    residual = float(
        (posterior.std * energy.gradient(torch.zeros_like(posterior.mean), torch.arange(len(data)))).norm()
    )
    squares = energy.fisher_diagonal(rows, generator) / len(rows)
    of_a_row = math.sqrt(float(posterior.std.square().dot(squares)))
    numbers = {
        "residual": residual,
        "residual_of_a_row": of_a_row,
        "lambda_min": least_curvature(energy, posterior.std, rows, len(data), generator),
    }
    pulling = residual / of_a_row
    findings = (
        f"the gradient left by training is {residual:.2g} in the natural metric: {pulling:.0f} rows, all pulling the "
        f"same way, make as large a one, of {len(data)}",
    )
    if pulling > _MOST_PULLING * len(data):
        advice = (f"training has not come to rest, and forgetting cannot mend that: {POLISH}",)
        return Readiness(("estimated",), math.nan, numbers, findings, advice)
    return Readiness(("estimated",), math.nan, numbers, findings, ())


def check_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Readiness:
    """Of stored samples and the rows they were drawn for."""
    likelihood.check_data(data)
    found = diagnose_samples(likelihood, sample_set, data)
    numbers = {
        "r_hat": found.r_hat,
        "ess": found.ess,
        "width": found.width,
        "chains": float(len(set(sample_set.chain.tolist()))),
        "draws": float(len(sample_set.samples)),
        "largest_divergence": math.log(len(sample_set.samples)),
    }
    findings = (
        f"R-hat {found.r_hat:.3f}, {found.ess:.0f} effective draws, {found.width:.2f} times as wide as the posterior",
        f"{len(sample_set.samples)} draws can show a divergence of at most {numbers['largest_divergence']:.1f} nats",
    )
    if found.warning is not None:
        return Readiness((), math.nan, numbers, findings, (found.warning,))
    return Readiness(("estimated",), math.nan, numbers, findings, ())


def diagnose_samples(likelihood: Likelihood, sample_set: SampleSet, data: Tensor) -> Diagnostics:
    """Whether they can be draws of p(θ | data). Chains of unequal length are cut to the shortest."""
    draws = _by_chain(sample_set)
    looked_at = at_even_steps(draws, min(draws.shape[1], _WIDTH_DRAWS))
    slopes = Potential(likelihood, data).gradients(looked_at.flatten(0, 1))
    return diagnose(draws, slopes.view_as(looked_at))


def _natural(at: Expansion) -> tuple[float, float]:
    std = at.posterior.std.flatten()
    scale = torch.cat([std, std / math.sqrt(2)])
    bent = at.hessian * scale * scale.unsqueeze(1)
    return float((scale * at.gradient).norm()), float(torch.linalg.eigvalsh(bent)[0])


def _by_chain(sample_set: SampleSet) -> Tensor:
    """(chains, kept, p)."""
    numbers = sorted(set(sample_set.chain.tolist()))
    kept = min(int((sample_set.chain == number).sum()) for number in numbers)
    return torch.stack([sample_set.samples[sample_set.chain == number][:kept] for number in numbers])
