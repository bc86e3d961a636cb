"""Bayesian classification networks: p(y=k | x, θ) = softmax(outputs(x, θ))_k, every weight and bias ~ N(0, prior_std²).

θ is one flat vector: for each layer its weights, then its biases. A row is the flattened input and the label
0..classes-1 last. Everything is computed in the precision of θ, so rows may be stored in float32.

Each layer is linear in (weight, bias). So with independent Gaussian weights an activation is Gaussian before the
non-linearity. `linear` computes its mean from their means, and its variance from their variances and the squared input.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ml.errors import InvalidInput
from ml.models.checks import check_labels, check_scale
from ml.models.regression import WeightPrior
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.families import ActivationName

_INITIAL_STD = 0.02  # small, so that the means learn first
_INPUT_TYPES = (torch.float32, torch.float64)

Activation = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    return x


_ACTIVATIONS: Mapping[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
}


def check_activation(name: str) -> None:
    """Raise InvalidInput unless there is an activation of this name."""
    if name not in _ACTIVATIONS:
        raise InvalidInput(f"activation is {name!r}: choose one of {', '.join(_ACTIVATIONS)}")


def pooled(name: ActivationName) -> Activation:
    """Return 2×2 max-pooling followed by an activation.

    Where the activation is monotonic the order does not matter, and this one computes it for a quarter of the numbers.
    """
    activation = _ACTIVATIONS[name]
    return lambda x: activation(functional.max_pool2d(x, 2))


@dataclass(frozen=True)
class Layer(ABC):
    """A layer that is linear in its weights, followed by an activation function."""

    inputs: int
    outputs: int
    activation: Activation

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight, outputs first."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the activations of a batch before the non-linearity."""

    @property
    def fan_in(self) -> int:
        return math.prod(self.weight_shape[1:])

    @property
    def size(self) -> int:
        return math.prod(self.weight_shape) + self.outputs

    def unpack(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and bias from this layer's part of θ."""
        weight, bias = torch.split(part, [self.size - self.outputs, self.outputs])
        return weight.reshape(self.weight_shape), bias


@dataclass(frozen=True)
class Dense(Layer):
    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(x.flatten(1), weight, bias)


@dataclass(frozen=True)
class Convolution(Layer):
    kernel: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs, self.kernel, self.kernel)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.conv2d(x, weight, bias)


class Network(ABC):
    """Likelihood of a network. Subclasses define its layers."""

    prior_std: float

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input before it is flattened into a row."""

    @property
    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """Layers from input to output; the last has one unit per class."""

    @property
    def parameter_count(self) -> int:
        return sum(layer.size for layer in self.layers)

    def check_posterior(self, posterior: MeanFieldGaussian) -> None:
        """Raise InvalidInput unless the posterior belongs to this network."""
        if posterior.mean.shape != (self.parameter_count,):
            raise InvalidInput(
                f"posterior has shape {tuple(posterior.mean.shape)}: this network has {self.parameter_count} parameters"
            )

    def check_data(self, data: Tensor) -> None:
        columns = math.prod(self.input_shape) + 1
        if data.ndim != 2 or data.shape[1] != columns or len(data) == 0:
            raise InvalidInput(
                f"data has shape {tuple(data.shape)}: pass at least one row of {columns} columns, the label last"
            )
        if data.dtype not in _INPUT_TYPES:
            raise InvalidInput(f"data is {data.dtype}: convert it to torch.float32 or torch.float64")
        # Not isfinite, which copies: image datasets fill hundreds of megabytes.
        if not all(math.isfinite(extreme) for extreme in torch.aminmax(data)):
            raise InvalidInput("data holds NaN or infinity: clean or drop those rows")
        check_labels(data, self.layers[-1].outputs)

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        return self.score(self.outputs(theta, data), data[:, -1])

    def log_prior(self, theta: Tensor) -> Tensor:
        return WeightPrior(self.prior_std).log_density(theta)

    def outputs(self, theta: Tensor, data: Tensor) -> Tensor:
        """Return the logits of each row: (n, classes)."""
        x = self.inputs(data, theta.dtype)
        for layer, (weight, bias) in zip(self.layers, self.unpack(theta), strict=True):
            x = layer.activation(layer.linear(x, weight, bias))
        return x

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return log p(y_i | outputs_i) of each row: (n,)."""
        return outputs.log_softmax(1).gather(1, labels.long().unsqueeze(1)).squeeze(1)

    def inputs(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows without their labels, in the input shape of the first layer."""
        return data[:, :-1].to(dtype).reshape(len(data), *self.input_shape)

    def unpack(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of each layer."""
        parts = torch.split(theta, [layer.size for layer in self.layers])
        return [layer.unpack(part) for layer, part in zip(self.layers, parts, strict=True)]

    def initial(self, seed: int, std: float = _INITIAL_STD) -> MeanFieldGaussian:
        """Return means uniform within ±fan_in^(-1/2), so that activations keep their size from layer to layer."""
        check_scale("std", std)
        generator = torch.Generator().manual_seed(seed)
        bounds = [torch.full((layer.size,), layer.fan_in**-0.5, dtype=torch.float64) for layer in self.layers]
        unit = 2 * torch.rand(self.parameter_count, generator=generator, dtype=torch.float64) - 1
        mean = unit * torch.cat(bounds)
        return MeanFieldGaussian(mean, torch.full_like(mean, std))


def dense_layers(*widths: int, activation: ActivationName = "relu") -> tuple[Dense, ...]:
    """Return fully connected layers between these widths, with the activation between them."""
    last = len(widths) - 2
    return tuple(
        Dense(inputs, outputs, identity if index == last else _ACTIVATIONS[activation])
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths))
    )
