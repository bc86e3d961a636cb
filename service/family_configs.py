"""What each of our families is configured by, within which limits, and what its tensors then look like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from service.schemas.deletions import Strict
from service.store.datasets.layouts import Layout

NETWORKS = ("lenet5", "mlp")
"""Families of which epsilon, unless they are retrained, is no divergence but an estimate of the excess of one."""
MOST_PARAMETERS = 8192
MOST_NETWORK_PARAMETERS = 1_000_000
NETWORK_ROW_TYPES = ("float64", "float32")
# Forgetting deals the rows out to 32 draws of the network, each of which has to get some.
LEAST_NETWORK_ROWS = 64

Count = Annotated[int, Field(ge=1, le=MOST_PARAMETERS)]
Width = Annotated[int, Field(ge=1, le=MOST_NETWORK_PARAMETERS)]
Classes = Annotated[int, Field(ge=2, le=1000)]
Scale = Annotated[float, Field(gt=0, le=1e6)]
Draws = Annotated[int, Field(ge=2, le=1024, multiple_of=2)]
# Certificates carry the configuration, and canonical JSON has no larger whole number.
Seed = Annotated[int, Field(ge=0, lt=1 << 53)]


class Config(Strict, ABC):
    most_parameters: ClassVar[int] = MOST_PARAMETERS
    because: ClassVar[str] = "a worker keeps the Hessian of all of them"

    @property
    @abstractmethod
    def layout(self) -> Layout: ...

    @model_validator(mode="after")
    def _small_enough(self) -> Config:
        count = self.layout.parameter_count
        if count is not None and count > self.most_parameters:
            raise ValueError(f"has {count} parameters; {self.because}, so use at most {self.most_parameters}")
        return self


class GaussianMixtureConfig(Config):
    """Unit-variance components with uniform weights; θ are the means of the components."""

    components: Annotated[int, Field(ge=1, le=100)]
    dimensions: Annotated[int, Field(ge=1, le=1000)]
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        return Layout((self.components, self.dimensions), self.dimensions, least_rows=self.components)


class LinearRegressionConfig(Config):
    """y ~ N(xᵀθ, noise_std²). Rows are the features and y last; an intercept is a column of ones."""

    dimensions: Count
    noise_std: Scale
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        return Layout((self.dimensions,), self.dimensions + 1)


class LogisticRegressionConfig(Config):
    """p(y=1) = 1/(1+exp(-xᵀθ)). Rows are the features and the label 0 or 1 last."""

    dimensions: Count
    prior_std: Scale
    draws: Draws
    seed: Seed

    @property
    def layout(self) -> Layout:
        return Layout((self.dimensions,), self.dimensions + 1, classes=2)


class SoftmaxRegressionConfig(Config):
    """p(y=k) ∝ exp(θ_kᵀx). Rows are the features and the label last; θ is flattened class by class."""

    dimensions: Count
    classes: Classes
    prior_std: Scale
    draws: Draws
    seed: Seed

    @property
    def layout(self) -> Layout:
        return Layout((self.classes, self.dimensions), self.dimensions + 1, classes=self.classes)


class NetworkConfig(Config):
    """Every weight and bias ~ N(0, prior_std²); θ holds, layer by layer, the weights and then the biases."""

    most_parameters: ClassVar[int] = MOST_NETWORK_PARAMETERS
    because: ClassVar[str] = "a worker keeps dozens of draws of all of them"
    prior_std: Scale = 0.15


class MLPConfig(NetworkConfig):
    """W₂ relu(W₁x + b₁) + b₂, then softmax. Rows are the features and the label last."""

    dimensions: Width
    hidden: Width
    classes: Classes

    @property
    def layout(self) -> Layout:
        count = (self.dimensions + 1) * self.hidden + (self.hidden + 1) * self.classes
        return Layout((count,), self.dimensions + 1, self.classes, LEAST_NETWORK_ROWS, NETWORK_ROW_TYPES)


class LeNet5Config(NetworkConfig):
    """LeNet-5 for 32×32 grey pixels and ten classes: 61,706 parameters. Rows are the pixels and the label last."""

    @property
    def layout(self) -> Layout:
        return Layout((61_706,), 32 * 32 + 1, 10, LEAST_NETWORK_ROWS, NETWORK_ROW_TYPES)
