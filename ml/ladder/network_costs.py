"""What the rungs of a network's ladder cost beside retraining, estimated before any is tried.

The unit is the work of one parameter for one row. A pass forward and backward over r rows costs r·p, and as much as
`_PASS` units besides, which is what a small pass takes on one core: a minibatch of 128 rows of a perceptron of 400
parameters took as long as 3,000 rows more in a large pass. A product with the curvature matrix is two passes, a round
of descent about 18.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ml.certify.network.certificate import DEFAULT_RECIPE as CERTIFICATION
from ml.forgetting.network import DEFAULT_RECIPE as STEP
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import BayesByBackprop
from ml.models.network import Network
from ml.models.network_energy import default_reads

_PASS = 1e6
_TYPICAL = 0.5  # share of the products that are allowed which a certificate or step takes
_JUDGING_PASSES, _ROUND_PASSES = 8, 18
_ROUNDS = 4  # of a descent, where 12 are allowed: 2 to 5 were taken


@dataclass(frozen=True)
class NetworkCosts:
    """Work of each rung, its certificate included."""

    influence: float
    warm: float
    retrain: float

    def relative(self, rung: Literal["influence", "warm"]) -> float:
        """Return the work of a rung over that of retraining."""
        return (self.influence if rung == "influence" else self.warm) / self.retrain


def network_costs(
    network: Network, rows: int, forgotten: int, training: BayesByBackprop, descent: AveragedDescent
) -> NetworkCosts:
    """Estimate the costs of forgetting some of these rows."""

    def work(passes: float, rows_of_a_pass: int) -> float:
        return passes * (rows_of_a_pass * network.parameter_count + _PASS)

    readings = rows * default_reads(rows)
    passes = 2 * _TYPICAL * CERTIFICATION.max_products + _ROUNDS * _ROUND_PASSES
    certificate = work(passes, readings)
    sampled = STEP.sample_size(forgotten, max(1, rows - forgotten))
    step = work(2 * _TYPICAL * STEP.max_products + _JUDGING_PASSES, sampled)
    averaged = work(descent.iterations, descent.batch_size)
    trained = work(training.iterations, training.batch_size * training.draws)
    return NetworkCosts(step + certificate, 2 * certificate, trained + averaged)
