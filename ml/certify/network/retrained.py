"""Certificate of a retrained network: training has not read the forgotten rows, so none of their influence is left."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import NOT_PROVED
from ml.certify.network.rest import measure_rest
from ml.models.network import Network
from ml.posteriors.mean_field import MeanFieldGaussian

REFERENCE = "this posterior itself, trained from scratch on the retained rows"
DIRECTION = "epsilon and epsilon_reverse are 0 in both directions: the processed posterior is the reference"
RECIPE = (
    "The reference is the training recipe itself, run from that seed: another seed would have led to another minimum, "
    "and that training has found a good one is not shown."
)


@dataclass(frozen=True)
class RetrainedNetwork:
    """Training seed and iterations, and how well training converged: the numbers of `ml.certify.network.rest`."""

    seed: int
    iterations: int
    residual: float
    residual_of_a_row: float
    lambda_min: float


def certify_retrained_network(
    network: Network, posterior: MeanFieldGaussian, retained: Tensor, seed: int, iterations: int
) -> Certificate:
    """Certify a network trained on the retained rows only: ε is 0. The constants show how well training converged."""
    return Certificate(
        epsilon=0.0,
        epsilon_reverse=0.0,
        level="retrained",
        reference=REFERENCE,
        direction=DIRECTION,
        n_retained=len(retained),
        assumptions=(
            Assumption("retrained", True, len(retained), len(retained), "training has read the retained rows only"),
        ),
        constants=RetrainedNetwork(seed, iterations, **measure_rest(network, posterior, retained)),
        not_proved=(RECIPE, *NOT_PROVED[1:]),
    )
