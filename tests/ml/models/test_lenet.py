from __future__ import annotations

import pytest
import torch
from torch import nn

from ml.errors import InvalidInput
from ml.models.lenet import LeNet5
from vocabulary.families import ActivationName


@pytest.mark.parametrize(("name", "activation"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("softplus", nn.Softplus)])
def test_it_is_lenet_5(name: ActivationName, activation: type[nn.Module]) -> None:
    """All three are monotonic, so pooling may come first."""
    network = LeNet5(activation=name)
    assert network.parameter_count == 61_706
    module = nn.Sequential(
        nn.Conv2d(1, 6, 5),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        activation(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, 10),
    ).double()
    theta = network.initial(seed=0).mean
    nn.utils.vector_to_parameters(theta, module.parameters())
    images = torch.rand(3, 1024, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    expected = module(images.view(3, 1, 32, 32))
    outputs = network.outputs(theta, torch.cat([images, torch.zeros(3, 1)], 1))
    assert torch.allclose(outputs, expected, rtol=1e-12, atol=1e-13)


def test_the_default_prior_is_the_papers() -> None:
    assert LeNet5().prior_std == 0.15
    with pytest.raises(InvalidInput, match="prior_std is -1"):
        LeNet5(prior_std=-1)
    with pytest.raises(InvalidInput, match="activation is 'step'"):
        LeNet5(activation="step")  # type: ignore[arg-type]
