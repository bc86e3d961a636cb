from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.mlp import MLP
from vocabulary.families import ACTIVATIONS, ActivationName

_FORMULAS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "softplus": lambda x: (1 + x.exp()).log(),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_follow_the_formula(activation: ActivationName) -> None:
    network = MLP(dimensions=3, hidden=4, classes=2, activation=activation)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(network.parameter_count, generator=generator, dtype=torch.float64)
    assert len(theta) == 3 * 4 + 4 + 4 * 2 + 2
    first, second = theta[:12].view(4, 3), theta[16:24].view(2, 4)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    expected = _FORMULAS[activation](x @ first.T + theta[12:16]) @ second.T + theta[24:]
    assert torch.allclose(network.outputs(theta, torch.cat([x, torch.zeros(7, 1)], 1)), expected, atol=1e-13)


def test_the_papers_prior_and_relu_are_the_defaults() -> None:
    assert MLP(2, 2, 2) == MLP(2, 2, 2, prior_std=0.15, activation="relu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 2), "dimensions is 0"),
        ((1, 0, 2), "hidden is 0"),
        ((1, 1, 1), "classes is 1"),
        ((1, 1, 2, 0.0), "prior"),
        ((1, 1, 2, 0.1, "sign"), "activation is 'sign': choose one of relu, tanh, softplus, gelu"),
    ],
)
def test_a_wrong_configuration_is_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MLP(*arguments)
