"""Bayesian LeNet-5 (Y. LeCun et al., 1998) for images of 32×32 grey pixels: the network of the BIF paper."""

from dataclasses import dataclass

from ml.models.checks import check_scale
from ml.models.network import Convolution, Layer, Network, check_activation, dense_layers, pooled
from vocabulary.families import NETWORK_PRIOR_STD, ActivationName


@dataclass(frozen=True)
class LeNet5(Network):
    """Two 5×5 convolutions, each with 2×2 max-pooling and activation, then three dense layers: 61,706 parameters."""

    prior_std: float = NETWORK_PRIOR_STD
    activation: ActivationName = "relu"

    def __post_init__(self) -> None:
        check_scale("prior_std", self.prior_std)
        check_activation(self.activation)

    @property
    def classes(self) -> int:
        return 10

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, 32, 32)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (
            Convolution(1, 6, pooled(self.activation), kernel=5),  # 32 -> 28 -> 14
            Convolution(6, 16, pooled(self.activation), kernel=5),  # 14 -> 10 -> 5
            *dense_layers(16 * 5 * 5, 120, 84, self.classes, activation=self.activation),
        )
