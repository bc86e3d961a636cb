"""Readiness of a network's posterior: what training left, what restarts find below, and what deletions will get.

    residual           gradient that training left, beside `residual_of_a_row`: that of a single row
    could_fall         nats by which the energy falls in a few more trainings, with its standard error
    epsilon_in_reach   estimate for one random row that was forgotten and thrown away; infinite if it got none
    epsilon_of_ten     the same for ten rows, unless that is more than a twentieth of all

A network that is too large for estimates is told so. That is a finding and not advice: retraining is its way to forget.

A network is ready if the restarts find nothing lower than the policy's epsilon would notice. Where the sampling error
of the fall is larger than epsilon this cannot be told, and the findings say so.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ml.certify.network.certificate import TOO_LARGE
from ml.certify.network.could_fall import NORMAL_95, RESTARTS, CouldFall, could_fall
from ml.certify.network.rest import measure_rest
from ml.certify.readiness import POLISH, Readiness
from ml.errors import ForgettingError
from ml.ladder.network import forget
from ml.ladder.policy import Policy
from ml.models.network import Network
from ml.models.network_energy import can_be_read_whole
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.levels import Level

DEFAULT_EPSILON = 1.0
"""Nats that matter where no policy says so."""
_MAX_RESIDUAL_SHARE = 0.01  # residual of a network in single-row gradients, as a share of the rows
_GROUP_SEED = 0
_FEW, _SEVERAL, _LARGEST_SHARE = 1, 10, 0.05
_BELOW_RETRAINING = Policy(DEFAULT_EPSILON, level="estimated", rungs=("influence", "warm"))


def check_network(
    network: Network, posterior: MeanFieldGaussian, data: Tensor, epsilon: float | None = None
) -> Readiness:
    """Check a network's mean-field posterior against its training rows and the policy's epsilon.

    Its certificates are at most estimated.
    """
    noticed = epsilon or DEFAULT_EPSILON
    numbers, fall = measure_rest(network, posterior, data), could_fall(network, posterior, data)
    small = can_be_read_whole(network, len(data))
    rehearsed = _rehearse_groups(network, posterior, data, noticed) if small else {}
    in_reach = rehearsed.get(_FEW, math.inf)
    rows_pulling = numbers["residual"] / numbers["residual_of_a_row"]
    findings = [
        f"the gradient left by training is {numbers['residual']:.2g} in the natural metric, as large as that of "
        f"{rows_pulling:.0f} rows pulling in one direction; the data set has {len(data)} rows",
        f"in {RESTARTS} short continuations of training the energy fell by up to {fall.nats:.2g} nats (standard error "
        f"{fall.standard_error:.2g}) of {fall.energy:.4g}; longer ones may find more",
    ]
    if _margin(fall) > noticed:
        findings.append(
            f"whether more than {noticed:.2g} nats can be gained cannot be told: sampling moves the fall by "
            f"{_margin(fall):.2g}"
        )
    findings += [_describe(size, reached, noticed) for size, reached in rehearsed.items()] if small else [TOO_LARGE]
    advice = []
    if rows_pulling > _MAX_RESIDUAL_SHARE * len(data):
        advice.append(f"training has not converged, and forgetting does not correct that: {POLISH}")
    if fall.nats > max(noticed, _margin(fall)):
        advice.append(
            f"the energy can still fall by {fall.nats:.2g} nats: train means and widths longer, and register the result"
        )
    if small and in_reach > noticed:
        advice.append(
            f"deletions will have to retrain the model: {POLISH}, choose a smooth activation, or allow a larger epsilon"
        )
    numbers |= {"could_fall": fall.nats, "could_fall_error": fall.standard_error, "epsilon_in_reach": in_reach}
    if _SEVERAL in rehearsed:
        numbers["epsilon_of_ten"] = rehearsed[_SEVERAL]
    levels: tuple[Level, ...] = ("estimated",) if math.isfinite(in_reach) else ()
    return Readiness(levels, math.nan, numbers, tuple(findings), tuple(advice))


def _margin(fall: CouldFall) -> float:
    return NORMAL_95 * fall.standard_error


def _rehearse_groups(network: Network, posterior: MeanFieldGaussian, data: Tensor, epsilon: float) -> dict[int, float]:
    """Return the estimate for each group size."""
    sizes = [_FEW, _SEVERAL] if _LARGEST_SHARE * len(data) >= _SEVERAL else [_FEW]
    policy = replace(_BELOW_RETRAINING, epsilon=epsilon)
    return {size: _rehearse(network, posterior, data, size, policy) for size in sizes}


def _rehearse(network: Network, posterior: MeanFieldGaussian, data: Tensor, size: int, policy: Policy) -> float:
    """Forget random rows without retraining, and return the smallest estimate; infinite if there is none."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(_GROUP_SEED))
    try:
        outcome = forget(network, posterior, data, order[:size].to(data.device), policy)
    except ForgettingError:
        return math.inf
    return min(record.epsilon for record in outcome.rungs)


def _describe(size: int, reached: float, epsilon: float) -> str:
    rows = "one random row" if size == 1 else f"{size} random rows"
    if reached == math.inf:
        return f"a deletion of {rows}, rehearsed without retraining, got no certificate: such deletions are retrained"
    if reached > epsilon:
        return (
            f"a deletion of {rows}, rehearsed without retraining, was estimated within {reached:.2g} nats, above the "
            f"{epsilon:.2g} of the policy: such deletions are retrained"
        )
    return f"a deletion of {rows}, rehearsed without retraining, was estimated within {reached:.2g} nats"
