"""Distance between the optimum of a frozen-noise energy and that of the exact ELBO (evidence lower bound): an estimate.

A family with frozen noise minimises F, an average over M draws, in place of the negative ELBO G. With λ* the optimum of
F, ∇G(λ*) = ∇G(λ*) - ∇F(λ*), and a Newton step from λ* leads to about the optimum of G:

    λ* - H⁻¹ (∇G - ∇F)        H = ∇²F

∇G is estimated with 4M draws of another seed. ∇G - ∇F changes little near λ*, so it is taken at the posterior at hand.
The noise of the fresh draws adds to the step: on average the distance is overestimated, by about a quarter. Where the
step is large, H is not the curvature of G, and the estimate is rough. It enters no bound.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.errors import NumericalFailure
from ml.models.family import Expansion, Family
from ml.models.frozen_noise import FrozenNoiseFamily
from ml.solvers import solve

_FRESH_DRAWS = 4  # times the draws of F
_SMALLEST_SHARE = 0.5  # of a width that the step leaves: a larger fall is beyond a Newton step


def estimate_elbo_distance(family: Family, expansion: Expansion, data: Tensor) -> float:
    """Return KL(q_λ* ‖ optimum of the exact ELBO) in nats, estimated; 0 where F is the negative ELBO itself."""
    if not isinstance(family, FrozenNoiseFamily):
        return 0.0
    posterior = expansion.posterior
    fresh = family.with_noise(_FRESH_DRAWS * family.draws, family.seed ^ 1)
    gap = fresh.group_gradient(posterior, data) - family.group_gradient(posterior, data)
    mean, std = (posterior.flat() - solve(expansion.hessian, gap).x).chunk(2)
    smallest = _SMALLEST_SHARE * posterior.std.flatten()
    return posterior.kl(posterior.with_flat(torch.cat([mean, torch.maximum(std, smallest)])))


def state_elbo_distance(certificate: Certificate, family: Family, expansion: Expansion, data: Tensor) -> Certificate:
    """Return the certificate with the distance and, for a family with frozen noise, a sentence about it.

    A Hessian that cannot be solved leaves the certificate as it is: the distance is then not known.
    """
    try:
        distance = estimate_elbo_distance(family, expansion, data)
    except NumericalFailure:
        return certificate
    sentences = (_describe(family, distance),) if isinstance(family, FrozenNoiseFamily) else ()
    return replace(certificate, elbo_distance=distance, not_proved=(*sentences, *certificate.not_proved))


def _describe(family: FrozenNoiseFamily, distance: float) -> str:
    return (
        f"The reference is the optimum of an average over {family.draws} frozen noise draws (seed {family.seed}). The "
        f"optimum of the exact evidence lower bound (ELBO) is estimated to be {distance:.1e} nats from it; the "
        f"estimate, from {_FRESH_DRAWS * family.draws} other draws, enters no bound."
    )
