"""Bayesian multilayer perceptron with one hidden layer."""

from dataclasses import dataclass

from ml.models.checks import check_count, check_scale
from ml.models.network import Layer, Network, check_activation, dense_layers
from vocabulary.families import NETWORK_PRIOR_STD, ActivationName


@dataclass(frozen=True)
class MLP(Network):
    """outputs = W₂ activation(W₁x + b₁) + b₂."""

    dimensions: int
    hidden: int
    classes: int
    prior_std: float = NETWORK_PRIOR_STD
    activation: ActivationName = "relu"

    def __post_init__(self) -> None:
        check_count("dimensions", self.dimensions)
        check_count("hidden", self.hidden)
        check_count("classes", self.classes, minimum=2)
        check_scale("prior_std", self.prior_std)
        check_activation(self.activation)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dimensions,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return dense_layers(self.dimensions, self.hidden, self.classes, activation=self.activation)
