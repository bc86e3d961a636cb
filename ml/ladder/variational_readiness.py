"""Readiness of a variational posterior: what deletions will get without retraining, found by rehearsing one.

A random row is forgotten by the rungs below retraining, as a deletion would forget it, and the result is thrown away.
Its level and bound are what deletions will get. Numbers in the natural metric of a mean-field Gaussian, in which a step
of length r is a divergence of about ½r², say how well training converged:

    residual           ‖D^(-½)∇F‖              D = diag(1/σ², 2/σ²) over (μ, σ)
    lambda_min         of D^(-½)∇²F D^(-½)     residual/lambda_min is about the distance to the optimum
    could_fall         nats by which F lies above the minimum that training on from here reaches
    epsilon_in_reach   smallest bound of the rehearsal; infinite if it has none
    elbo_distance      from the optimum to that of the exact evidence lower bound (ELBO), estimated
    lower_starts       how many of a few fresh starts ended lower, and `lowest_start` nats below; mixtures only
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.elbo_distance import estimate_elbo_distance
from ml.certify.fresh_starts import try_fresh_starts
from ml.certify.kantorovich import certify_expansion
from ml.certify.readiness import POLISH, Readiness
from ml.errors import ForgettingError, NumericalFailure
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models.family import Expansion, Family
from ml.models.frozen_noise import FrozenNoiseFamily
from ml.posteriors.mean_field import MeanFieldGaussian

CONVERGED = 1e-6
"""Largest distance from the optimum, in nats, that no practical policy would notice."""
OWN_NOISE = 0.1
"""Distance from the optimum of the exact ELBO, in nats, above which a model is said to fit its own noise. Twice as many
draws as parameters stayed below it on every data set that was tried, few draws did not (docs/reference/models.md).
"""
_LOWER_MINIMUM = 1.0  # nats that make another start worth training
_REHEARSED = Policy(CONVERGED, rungs=("influence", "newton", "warm"))
_ROW_SEED = 0

RESTART = "train it from another start, or with fewer components, and register the result"
RESCALE = "scale the columns of the data to similar sizes or narrow the prior, train and register the result"


@dataclass(frozen=True)
class _Aspect:
    """What one part of the check adds to a readiness."""

    numbers: dict[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def check_variational(family: Family, posterior: MeanFieldGaussian, data: Tensor) -> Readiness:
    """Check a mean-field posterior against the rows it was trained on."""
    family.check_data(data)
    family.check_posterior(posterior)
    at = family.expand(posterior, data)
    certificate = certify_expansion(family, at, data)
    proved = certificate.level == "proved"
    optimum = at if proved else _train_on(family, at, data)
    convergence = _check_convergence(at, certificate, optimum)
    rehearsal = _rehearse(family, at, data)
    aspects = [convergence, rehearsal, _check_noise(family, optimum or at, data)]
    if not family.convex:
        aspects.append(_check_starts(family, optimum or at, data))
    return Readiness(
        levels=("proved",) if math.isfinite(rehearsal.numbers["epsilon_in_reach"]) else (),
        distance=certificate.epsilon if proved else math.inf,
        numbers={name: value for aspect in aspects for name, value in aspect.numbers.items()},
        findings=tuple(finding for aspect in aspects for finding in aspect.findings),
        advice=tuple(advice for aspect in aspects for advice in aspect.advice),
    )


def _train_on(family: Family, at: Expansion, data: Tensor) -> Expansion | None:
    """Return the minimum that training reaches from here; None if it reaches none."""
    try:
        return family.expand(train(family, data, at.posterior).posterior, data)
    except NumericalFailure:
        return None


def _check_convergence(at: Expansion, certificate: Certificate, optimum: Expansion | None) -> _Aspect:
    residual, lambda_min = _natural_metric(at)
    numbers = {"residual": residual, "lambda_min": lambda_min, "kantorovich": certificate.constants.kantorovich}
    gradient = (
        f"the gradient left by training is {residual:.2g} in the natural metric, the least curvature {lambda_min:.2g}"
    )
    if certificate.level == "proved":
        fall = certificate.constants.newton_decrement**2 / 2
        distance = (
            f"the optimum is proved to lie within {certificate.epsilon:.2g} nats; the energy can fall by {fall:.2g}"
        )
        polish = f"every deletion spends Newton steps on the distance that training left: {POLISH}"
        advice = (polish,) if certificate.epsilon > CONVERGED else ()
        return _Aspect({**numbers, "could_fall": fall}, (gradient, distance), advice)
    if optimum is None:
        lost = "training on from the posterior reaches no minimum"
        advice = (f"training has not reached a minimum: {RESTART}",)
        return _Aspect({**numbers, "could_fall": math.nan}, (gradient, *certificate.reasons, lost), advice)
    fall = max(0.0, at.energy - optimum.energy)
    below = f"training on from the posterior reaches a minimum {fall:.2g} nats below"
    advice = (f"training has not reached its optimum: {POLISH}",)
    return _Aspect({**numbers, "could_fall": fall}, (gradient, *certificate.reasons, below), advice)


def _rehearse(family: Family, at: Expansion, data: Tensor) -> _Aspect:
    """Forget a random row without retraining."""
    row = torch.randint(len(data), (1,), generator=torch.Generator().manual_seed(_ROW_SEED)).to(data.device)
    try:
        outcome = forget(family, at.posterior, data, row, _REHEARSED, hessian=at.hessian, examine_reference=False)
    except ForgettingError as error:
        return _cannot_be_certified(family, f"a deletion that was rehearsed failed: {error}")
    epsilon = min((record.epsilon for record in outcome.rungs if record.level == "proved"), default=math.inf)
    if epsilon == math.inf:
        reasons = "; ".join(outcome.certificate.reasons)
        return _cannot_be_certified(family, f"a deletion that was rehearsed got no certificate: {reasons}")
    finding = f"a deletion of one row, rehearsed without retraining, was proved within {epsilon:.2g} nats"
    return _Aspect({"epsilon_in_reach": epsilon}, (finding,))


def _cannot_be_certified(family: Family, finding: str) -> _Aspect:
    remedy = RESCALE if family.convex else RESTART
    return _Aspect({"epsilon_in_reach": math.inf}, (finding,), (f"deletions will have to retrain the model: {remedy}",))


def _check_noise(family: Family, optimum: Expansion, data: Tensor) -> _Aspect:
    """Estimate how far frozen noise moves the optimum."""
    try:
        distance = estimate_elbo_distance(family, optimum, data)
    except NumericalFailure:
        return _Aspect({"elbo_distance": math.nan})
    if not isinstance(family, FrozenNoiseFamily):
        return _Aspect({"elbo_distance": distance})
    finding = (
        f"the optimum with {family.draws} noise draws is estimated to be {distance:.2g} nats from that of the exact "
        "evidence lower bound (ELBO)"
    )
    fits_noise = f"the model fits its own noise: train and register it with more than {family.draws} draws"
    advice = (fits_noise,) if distance > OWN_NOISE else ()
    return _Aspect({"elbo_distance": distance}, (finding,), advice)


def _check_starts(family: Family, optimum: Expansion, data: Tensor) -> _Aspect:
    """Report whether training from elsewhere ends lower."""
    starts = try_fresh_starts(family, optimum, data)
    numbers = {"lower_starts": float(starts.lower), "lowest_start": starts.lowest}
    finding = f"{starts.lower or 'none'} of {starts.tried} fresh starts ended in a lower minimum"
    if starts.lower:
        finding += f", up to {starts.lowest:.2g} nats below"
    advice = (f"training has not found the lowest minimum: {RESTART}",) if starts.lowest > _LOWER_MINIMUM else ()
    return _Aspect(numbers, (finding,), advice)


def _natural_metric(expansion: Expansion) -> tuple[float, float]:
    """Return residual and lambda_min."""
    std = expansion.posterior.std.flatten()
    scale = torch.cat([std, std / math.sqrt(2)])
    curvature = expansion.hessian * scale * scale.unsqueeze(1)
    return float((scale * expansion.gradient).norm()), float(torch.linalg.eigvalsh(curvature)[0])
