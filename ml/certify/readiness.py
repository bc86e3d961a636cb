"""Readiness of a posterior: which certificate levels it can reach as registered, and how to improve it.

Certificates refer to an optimum, and training may have stopped before reaching it. Distances are measured in the
natural metric of a mean-field Gaussian, in which a step of length r is a divergence of about ½r²:

    residual     ‖D^(-½)∇F‖              D = diag(1/σ², 2/σ²) over (μ, σ)
    lambda_min   of D^(-½)∇²F D^(-½)     residual/lambda_min is about the distance to the optimum

Sample sets: `ml.certify.sample_readiness`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.certificate import plain
from ml.certify.kantorovich import certify_expansion
from ml.models.family import Expansion, Family
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.levels import Level

CONVERGED = 1e-6
"""Largest distance from the optimum, in nats, that no practical policy would notice."""

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


def _natural_metric(expansion: Expansion) -> tuple[float, float]:
    """Return residual and lambda_min."""
    std = expansion.posterior.std.flatten()
    scale = torch.cat([std, std / math.sqrt(2)])
    curvature = expansion.hessian * scale * scale.unsqueeze(1)
    return float((scale * expansion.gradient).norm()), float(torch.linalg.eigvalsh(curvature)[0])
