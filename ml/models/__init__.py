"""Model families by name. Ours and anybody else's come through the same door: entry points of `lethe.families`."""

import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points

from ml.errors import InvalidInput
from ml.models.family import Expansion, Family, Rounding

__all__ = ["Expansion", "Family", "Rounding", "build"]

_GROUP = "lethe.families"


def build(family: str, config: Mapping[str, object]) -> Family:
    """The family of that name, configured."""
    known = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if family not in known:
        raise InvalidInput(f"unknown model family {family!r}: choose one of {sorted(known)}")
    constructor = known[family].load()
    try:
        arguments = inspect.signature(constructor).bind(**config)
    except TypeError as error:
        raise InvalidInput(f"configuration of {family!r} does not fit ({error}): correct its keys") from error
    built: Family = constructor(*arguments.args, **arguments.kwargs)
    return built
