"""Model families by name: the built-in ones and those that other packages install."""

import inspect
from collections.abc import Mapping

from ml.errors import InvalidInput
from ml.models.family import Expansion, Family, Rounding
from ml.models.network import Network
from vocabulary.families import current_config, entry_points_by_family

__all__ = ["Expansion", "Family", "Model", "Network", "Rounding", "build", "build_family"]

Model = Family | Network


def build(family: str, config: Mapping[str, object]) -> Model:
    """Return the model of the family of that name, with this configuration."""
    available = entry_points_by_family()
    if family not in available:
        raise InvalidInput(f"unknown model family {family!r}: choose one of {sorted(available)}")
    constructor = available[family].load()
    try:
        arguments = inspect.signature(constructor).bind(**current_config(family, config))
    except TypeError as error:
        raise InvalidInput(f"configuration of {family!r} does not fit ({error}): correct its keys") from error
    model: Model = constructor(*arguments.args, **arguments.kwargs)
    return model


def build_family(family: str, config: Mapping[str, object]) -> Family:
    """Return a model with closed forms. InvalidInput if the name is that of a network."""
    model = build(family, config)
    if isinstance(model, Network):
        raise InvalidInput(f"{family!r} is a network: use `build`, and train it with `ml.inference.network_training`")
    return model
