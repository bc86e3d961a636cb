"""Model families: the table of the built-in ones, and those that other packages install.

A new built-in family is a configuration class and an entry of `FAMILIES` in this file, and its implementation in
`ml/models/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vocabulary.layouts import Layout

ENTRY_POINT_GROUP = "lethe.families"
"""Entry points under which other packages offer families."""
MAX_PARAMETERS = 8192
MAX_NETWORK_PARAMETERS = 1_000_000
MIN_DEFAULT_DRAWS = 64
MAX_DEFAULT_DRAWS = 256
NETWORK_PRIOR_STD = 0.15
"""Default of the BIF paper's networks, after X. Liu et al., Adv-BNN (2018)."""
NETWORK_ROW_TYPES = ("float64", "float32")
# Forgetting splits the retained rows among 32 draws of the network, and each draw needs one.
NETWORK_DRAWS = 32
MIN_NETWORK_ROWS = 2 * NETWORK_DRAWS
LARGEST_NETWORK_VALUE = 1e9
"""Networks compute in float32, where the square of a larger number nears the end of the range."""

ActivationName = Literal["relu", "tanh", "softplus", "gelu"]
"""Non-linearity of a network's hidden layers. All but relu are smooth: relu has a kink wherever a unit switches."""
ACTIVATIONS: tuple[ActivationName, ...] = get_args(ActivationName)

Count = Annotated[int, Field(ge=1, le=MAX_PARAMETERS)]
Width = Annotated[int, Field(ge=1, le=MAX_NETWORK_PARAMETERS)]
Classes = Annotated[int, Field(ge=2, le=1000)]
Scale = Annotated[float, Field(ge=1e-6, le=1e6)]
Draws = Annotated[int, Field(ge=2, le=1024, multiple_of=2)]
# Certificates repeat the configuration, and canonical JSON has no larger integer.
Seed = Annotated[int, Field(ge=0, lt=1 << 53)]


def default_draws(parameters: int) -> int:
    """Return enough draws of frozen noise for this many parameters, up to `MAX_DEFAULT_DRAWS`.

    Twice the parameters make the second moments of the noise exact, and the optimum then lies close to that of the
    exact expectation. A model too large for so many gets `MIN_DEFAULT_DRAWS`: its readiness says how far off it is.
    """
    needed = max(MIN_DEFAULT_DRAWS, 2 * parameters)
    return needed if needed <= MAX_DEFAULT_DRAWS else MIN_DEFAULT_DRAWS


class FamilyConfig(BaseModel, ABC):
    """Configuration of a family: its fields, their limits and the tensor layout that follows from them."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    max_parameters: ClassVar[int] = MAX_PARAMETERS
    reason_for_limit: ClassVar[str] = "a worker keeps the Hessian of all of them"
    retired_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of earlier versions, which are accepted and dropped."""

    @property
    @abstractmethod
    def layout(self) -> Layout: ...

    @model_validator(mode="before")
    @classmethod
    def _drop_retired_keys(cls, config: Any) -> Any:
        return without_keys(config, cls.retired_keys) if isinstance(config, Mapping) else config

    @model_validator(mode="after")
    def _check_parameter_count(self) -> FamilyConfig:
        count = self.layout.parameter_count
        if count is not None and count > self.max_parameters:
            raise ValueError(f"has {count} parameters; {self.reason_for_limit}, so use at most {self.max_parameters}")
        return self


class GaussianMixtureConfig(FamilyConfig):
    """Unit-variance components with uniform weights; θ are the means of the components."""

    components: Annotated[int, Field(ge=1, le=100)]
    dimensions: Annotated[int, Field(ge=1, le=1000)]
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        shape = self.components, self.dimensions
        return Layout(shape, self.dimensions, min_rows=self.components, records_needed=self.components)


class LinearRegressionConfig(FamilyConfig):
    """y ~ N(xᵀθ, noise_std²). Rows are the features and y last; an intercept is a column of ones."""

    dimensions: Count
    noise_std: Scale
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        return Layout((self.dimensions,), self.dimensions + 1)


class LogisticRegressionConfig(FamilyConfig):
    """p(y=1) = 1/(1+exp(-xᵀθ)). Rows are the features and the label 0 or 1 last."""

    # Noise over which expectations were averaged before they were computed exactly.
    retired_keys: ClassVar[frozenset[str]] = frozenset({"draws", "seed"})
    dimensions: Count
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        return Layout((self.dimensions,), self.dimensions + 1, classes=2)


class SoftmaxRegressionConfig(FamilyConfig):
    """p(y=k) ∝ exp(θ_kᵀx). Rows are the features and the label last; θ is flattened class by class."""

    dimensions: Count
    classes: Classes
    prior_std: Scale
    draws: Draws = Field(default_factory=lambda config: default_draws(config["classes"] * config["dimensions"]))
    seed: Seed = 0

    @property
    def layout(self) -> Layout:
        return Layout((self.classes, self.dimensions), self.dimensions + 1, classes=self.classes)


class NetworkConfig(FamilyConfig):
    """Every weight and bias ~ N(0, prior_std²); θ holds, layer by layer, the weights and then the biases."""

    max_parameters: ClassVar[int] = MAX_NETWORK_PARAMETERS
    reason_for_limit: ClassVar[str] = "a worker keeps dozens of draws of all of them"
    prior_std: Scale = NETWORK_PRIOR_STD
    activation: ActivationName = "relu"


class MLPConfig(NetworkConfig):
    """W₂ activation(W₁x + b₁) + b₂, then softmax. Rows are the features and the label last."""

    dimensions: Width
    hidden: Width
    classes: Classes

    @property
    def layout(self) -> Layout:
        count = (self.dimensions + 1) * self.hidden + (self.hidden + 1) * self.classes
        return _network_layout(count, self.dimensions, self.classes)


class LeNet5Config(NetworkConfig):
    """LeNet-5 for 32×32 grey pixels and ten classes: 61,706 parameters. Rows are the pixels and the label last."""

    @property
    def layout(self) -> Layout:
        return _network_layout(61_706, 32 * 32, 10)


def _network_layout(parameters: int, inputs: int, classes: int) -> Layout:
    return Layout(
        (parameters,),
        inputs + 1,
        classes,
        MIN_NETWORK_ROWS,
        NETWORK_ROW_TYPES,
        records_needed=NETWORK_DRAWS,
        largest_value=LARGEST_NETWORK_VALUE,
    )


@dataclass(frozen=True)
class BuiltInFamily:
    """A family of this package: its configuration and where its implementation is, as `module:class`."""

    config: type[FamilyConfig]
    implementation: str

    @property
    def is_network(self) -> bool:
        return issubclass(self.config, NetworkConfig)


FAMILIES: dict[str, BuiltInFamily] = {
    "gaussian-mixture": BuiltInFamily(GaussianMixtureConfig, "ml.models.gmm:GaussianMixture"),
    "linear-regression": BuiltInFamily(LinearRegressionConfig, "ml.models.linear:LinearRegression"),
    "logistic-regression": BuiltInFamily(LogisticRegressionConfig, "ml.models.logistic:LogisticRegression"),
    "softmax-regression": BuiltInFamily(SoftmaxRegressionConfig, "ml.models.softmax:SoftmaxRegression"),
    "mlp": BuiltInFamily(MLPConfig, "ml.models.mlp:MLP"),
    "lenet5": BuiltInFamily(LeNet5Config, "ml.models.lenet:LeNet5"),
}
"""The built-in families by name."""


def without_keys(config: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def current_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration, perhaps stored by an earlier version, without the keys that its family has retired."""
    return without_keys(config, FAMILIES[family].config.retired_keys if family in FAMILIES else frozenset())


def records_needed(family: str, config: Mapping[str, Any]) -> int:
    """Return how many records a model needs for its family to forget any: 1 for a family of another package."""
    if family not in FAMILIES:
        return 1
    # Not validated: a model registered under wider limits still needs an answer.
    return FAMILIES[family].config.model_construct(**config).layout.records_needed


def is_network(family: str) -> bool:
    """Return whether the family is a built-in network: its epsilon is an estimated excess, or 0 after retraining."""
    return family in FAMILIES and FAMILIES[family].is_network


def entry_points_by_family() -> dict[str, EntryPoint]:
    """Return the implementation of each available family, by name. Nothing is imported; built-in families win."""
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    built_in = {name: EntryPoint(name, family.implementation, ENTRY_POINT_GROUP) for name, family in FAMILIES.items()}
    return installed | built_in
