"""Tests of what all networks share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from ml.errors import InvalidInput
from ml.models.likelihood import Likelihood
from ml.models.network import Convolution, Dense, Network, identity
from tests.ml.networks import SmallConvolutional


def rows(network: Network, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(n, math.prod(network.input_shape), generator=generator, dtype=torch.float64)
    labels = torch.randint(network.layers[-1].outputs, (n, 1), generator=generator)
    return torch.cat([pixels, labels.double()], 1)


def torch_module(network: Network, theta: Tensor) -> nn.Module:
    """Return the same small network from torch.nn, with the weights θ."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).double()
    nn.utils.vector_to_parameters(theta, module.parameters())
    return module


@pytest.fixture
def theta() -> Tensor:
    return torch.randn(
        SmallConvolutional().parameter_count, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )


def test_it_is_a_likelihood() -> None:
    likelihood: Likelihood = SmallConvolutional()
    assert likelihood.parameter_count == (2 * 9 + 2) + (8 * 3 + 3)


def test_outputs_and_likelihood_are_those_of_torch_modules(theta: Tensor) -> None:
    data = rows(SmallConvolutional(), 5)
    expected = torch_module(SmallConvolutional(), theta)(data[:, :-1].reshape(5, 1, 6, 6))
    assert torch.allclose(SmallConvolutional().outputs(theta, data), expected, rtol=1e-13, atol=1e-13)
    loss = nn.functional.cross_entropy(expected, data[:, -1].long(), reduction="none")
    assert torch.allclose(SmallConvolutional().log_likelihood(theta, data), -loss, rtol=1e-13, atol=1e-13)


def test_the_prior_is_a_product_of_gaussians(theta: Tensor) -> None:
    expected = Normal(torch.zeros_like(theta), 0.3 * torch.ones_like(theta)).log_prob(theta).sum()
    assert float(SmallConvolutional(prior_std=0.3).log_prior(theta)) == pytest.approx(float(expected), rel=1e-13)


def test_the_precision_is_that_of_theta_and_not_of_the_rows(theta: Tensor) -> None:
    data = rows(SmallConvolutional(), 5).float()
    in_double = SmallConvolutional().log_likelihood(theta, data)
    assert in_double.dtype == torch.float64
    assert torch.equal(in_double, SmallConvolutional().log_likelihood(theta, data.double()))
    in_single = SmallConvolutional().log_likelihood(theta.float(), data)
    assert in_single.dtype == torch.float32
    assert torch.allclose(in_single.double(), in_double, atol=1e-5)


def test_it_works_under_vmap_and_grad(theta: Tensor) -> None:
    """Samplers and curvature products need batches of θ and their derivatives."""
    data = rows(SmallConvolutional(), 4)

    def total(sample: Tensor) -> Tensor:
        return SmallConvolutional().log_likelihood(sample, data).sum()

    samples = torch.stack([theta, 2 * theta, -theta])
    gradients = torch.func.vmap(torch.func.grad(total))(samples)
    for sample, gradient in zip(samples, gradients, strict=True):
        at = sample.clone().requires_grad_()
        assert torch.allclose(gradient, torch.autograd.grad(total(at), at)[0], rtol=1e-12, atol=1e-12)


def test_every_layer_is_linear_in_its_weights() -> None:
    generator = torch.Generator().manual_seed(2)
    for layer, shape in ((Dense(4, 3, identity), (5, 4)), (Convolution(2, 3, identity, kernel=2), (5, 2, 4, 4))):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        first, second = torch.randn(2, layer.size, generator=generator, dtype=torch.float64)
        sum_of_images = layer.linear(x, *layer.unpack(first)) + 2 * layer.linear(x, *layer.unpack(second))
        assert torch.allclose(layer.linear(x, *layer.unpack(first + 2 * second)), sum_of_images, rtol=1e-12, atol=1e-12)


def test_the_initial_posterior_follows_the_seed_and_the_fan_in() -> None:
    posterior = SmallConvolutional().initial(seed=3)
    (convolution, bias), (dense, _) = SmallConvolutional().unpack(posterior.mean)
    assert 0.6 / 3 < float(convolution.abs().max()) < 1 / 3
    assert float(bias.abs().max()) < 1 / 3
    assert 0.6 / math.sqrt(8) < float(dense.abs().max()) < 1 / math.sqrt(8)
    assert torch.equal(posterior.mean, SmallConvolutional().initial(seed=3, std=0.1).mean)
    assert posterior.std.unique().tolist() == [0.02]
    assert SmallConvolutional().initial(seed=3, std=0.1).std.unique().tolist() == [0.1]
    with pytest.raises(InvalidInput, match="std is 0"):
        SmallConvolutional().initial(seed=3, std=0.0)
    assert not torch.equal(posterior.mean, SmallConvolutional().initial(seed=4).mean)


def test_wrong_rows_are_refused() -> None:
    good = rows(SmallConvolutional(), 4)
    SmallConvolutional().check_data(good)
    SmallConvolutional().check_data(good.float())
    not_finite, label = good.clone(), good.clone()
    not_finite[1, 3], label[2, -1] = torch.nan, 3.0
    for data, message in (
        (good[:, 1:], "37 columns"),
        (good[:0], "at least one row"),
        (good.half(), r"convert it to torch\.float32"),
        (not_finite, "NaN or infinity"),
        (label, r"row 2 has the label 3\.0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            SmallConvolutional().check_data(data)
